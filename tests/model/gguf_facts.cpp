// SPDX-License-Identifier: MIT
//
// gguf_facts FILE keys|tensors|texts|logits
//
// What the library reads from a GGUF file, for gguf_real.py to compare:
//   keys      one JSON object on a line: key to value; an array as a list
//   tensors   for each tensor a line {"name", "format", "shape"}, then its weights as float32
//   texts     reads lines {"text"} or {"messages"}, writes {"ids"} or {"prompt"}
//   logits    reads lines {"ids"}, writes the logits of every position as float32: (ids, vocabulary)
#include <kvcache/formats/json.hpp>
#include <kvcache/model.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <cstddef>
#include <cstdint>
#include <iostream>
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
    const auto chat = must(kv::chat_template::open(words, "default"));
    for (std::string line; std::getline(std::cin, line);) {
        const kv::json asked = kv::json::parse(line);
        kv::json answer;
        if (asked.contains("messages")) {
            answer["prompt"] = must(chat.render(asked["messages"], {})).text();
        } else {
            answer["ids"] = kv::json::array();
            for (const auto id : must(words.encode(asked["text"].get<std::string>(), {.add_special_tokens = false})))
                answer["ids"].push_back(kv::index_of(id));
        }
        std::cout << answer.dump() << '\n';
    }
}

void answer_logits(const std::string& path) {
    const auto loaded = must(kv::load_model(path));
    kv::thread_pool threads(2);
    for (std::string line; std::getline(std::cin, line);) {
        std::vector<kv::token_id> prompt;
        const kv::json asked = kv::json::parse(line);
        for (const auto& id : asked["ids"])
            prompt.push_back(kv::token_id{id.get<std::int32_t>()});
        auto cache = kv::make_cache({loaded.model.shape(64), {.bytes = std::size_t{1} << 28}});
        kv::pipeline pipeline(cache, loaded.model, threads);
        const auto filled = must(pipeline.prefill(prompt, kv::logits_mode::all));
        std::cout.write(reinterpret_cast<const char*>(filled.logits.data()),
                        static_cast<std::streamsize>(static_cast<std::size_t>(filled.logits.size()) * sizeof(float)));
    }
}

} // namespace

int main(int count, char** arguments) {
    try {
        const std::string path = count > 1 ? arguments[1] : "", what = count > 2 ? arguments[2] : "";
        if (what == "texts") {
            answer_texts(path);
        } else if (what == "logits") {
            answer_logits(path);
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
