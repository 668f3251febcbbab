// SPDX-License-Identifier: MIT
//
// gguf_facts FILE keys|tensors|texts|logits|nll
//
// What the library reads from a GGUF file, for gguf_real.py to compare:
//   keys      one JSON object on a line: key to value; an array as a list
//   tensors   for each tensor a line {"name", "format", "shape"}, then its weights as float32
//   texts     reads lines {"text"}, "add_special" as it may say, or {"messages"}, writes {"ids"} or {"prompt"}
//   logits    reads lines {"ids"}, writes the logits of every position as float32: (ids, vocabulary)
//   nll       reads lines {"ids"}, writes {"nll"}: the mean negative log-likelihood of all ids but the first
#include <kvcache/formats/json.hpp>
#include <kvcache/model.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kv = kvcache;

namespace {

kv::json value_of(const kv::gguf_value& value) {
    if (const auto text = value.text())
        return std::string(*text);
    if (const auto flag = value.flag())
        return *flag;
    if (value.type() == kv::gguf_type::array) {
        kv::json list = kv::json::array();
        value.each([&](const kv::gguf_value& element) { list.push_back(value_of(element)); });
        return list;
    }
    if (const auto count = value.count())
        return *count;
    return value.number().value_or(0.0);
}

void write_keys(const kv::gguf_header& header) {
    kv::json all = kv::json::object();
    for (const auto& [key, value] : header.metadata())
        all[std::string(key)] = value_of(value);
    std::cout << all.dump() << '\n';
}

void write_tensors(const kv::gguf_file& file) {
    for (const kv::gguf_entry& entry : file.entries()) {
        std::cout
            << kv::json{{"name", entry.name}, {"format", kv::name_of(entry.format)}, {"shape", entry.shape}}.dump()
            << '\n';
        const kv::block_shape block = kv::shape_of(entry.format);
        std::vector<float> weights(entry.bytes.size() / block.bytes * block.weights);
        kv::dequantize(entry.format, entry.bytes, weights);
        std::cout.write(reinterpret_cast<const char*>(weights.data()),
                        static_cast<std::streamsize>(weights.size() * sizeof(float)));
    }
}

template <class T>
T must(kv::result<T> got) {
    if (!got)
        throw std::runtime_error(got.error().message);
    return *std::move(got);
}

void answer_texts(const std::string& path) {
    const auto words = must(kv::tokenizer::open(path));
    for (std::string line; std::getline(std::cin, line);) {
        const kv::json asked = kv::json::parse(line);
        kv::json answer;
        if (asked.contains("messages")) {
            const auto chat = must(kv::chat_template::open(words, "default"));
            answer["prompt"] = must(chat.render(asked["messages"], {})).text();
        } else {
            answer["ids"] = kv::json::array();
            const bool special = asked.value("add_special", false);
            for (const auto id : must(words.encode(asked["text"].get<std::string>(), {.add_special_tokens = special})))
                answer["ids"].push_back(kv::index_of(id));
        }
        std::cout << answer.dump() << '\n';
    }
}

std::vector<kv::token_id> ids_in(const std::string& line) {
    std::vector<kv::token_id> ids;
    const kv::json asked = kv::json::parse(line);
    for (const auto& id : asked["ids"])
        ids.push_back(kv::token_id{id.get<std::int32_t>()});
    return ids;
}

// Calls use(ids, first, logits) for the logits of 64 positions of a line at a time.
template <class Use>
void each_part(const std::string& path, Use use) {
    const auto loaded = must(kv::load_model(path));
    kv::thread_pool threads(2);
    for (std::string line; std::getline(std::cin, line);) {
        const std::vector<kv::token_id> ids = ids_in(line);
        auto cache = kv::make_cache({loaded.model.shape(64), {.bytes = std::size_t{1} << 29}});
        kv::pipeline pipeline(cache, loaded.model, threads);
        auto sequence = cache.open();
        for (std::size_t at = 0; at < ids.size(); at += 64) {
            const auto some = std::span(ids).subspan(at, std::min<std::size_t>(64, ids.size() - at));
            use(ids, at, must(pipeline.extend(sequence, some, kv::logits_mode::all)));
        }
    }
}

void answer_logits(const std::string& path) {
    each_part(path, [](const auto&, std::size_t, const kv::matrix& logits) {
        std::cout.write(reinterpret_cast<const char*>(logits.data()),
                        static_cast<std::streamsize>(static_cast<std::size_t>(logits.size()) * sizeof(float)));
    });
}

void answer_nll(const std::string& path) {
    double sum = 0.0;
    each_part(path, [&](const std::vector<kv::token_id>& ids, std::size_t first, const kv::matrix& logits) {
        sum = first == 0 ? 0.0 : sum;
        for (std::size_t i = 0; i < static_cast<std::size_t>(logits.rows()) && first + i + 1 < ids.size(); ++i) {
            const std::span<const float> row = kv::row_of(logits, i);
            const auto most = static_cast<double>(*std::max_element(row.begin(), row.end()));
            double all = 0.0;
            for (const float one : row)
                all += std::exp(static_cast<double>(one) - most);
            const auto said = static_cast<std::size_t>(kv::index_of(ids[first + i + 1]));
            sum += most + std::log(all) - static_cast<double>(row[said]);
        }
        if (first + static_cast<std::size_t>(logits.rows()) == ids.size())
            std::cout << kv::json{{"nll", sum / static_cast<double>(ids.size() - 1)}}.dump() << '\n';
    });
}

} // namespace

int main(int count, char** arguments) {
    try {
        const std::string path = count > 1 ? arguments[1] : "", what = count > 2 ? arguments[2] : "";
        if (what == "texts") {
            answer_texts(path);
        } else if (what == "logits") {
            answer_logits(path);
        } else if (what == "nll") {
            answer_nll(path);
        } else {
            const auto file = must(kv::gguf_file::open(path));
            what == "keys" ? write_keys(file.header()) : write_tensors(file);
        }
    } catch (const std::exception& problem) {
        std::cerr << "gguf_facts: " << problem.what() << '\n';
        return 1;
    }
    return 0;
}
