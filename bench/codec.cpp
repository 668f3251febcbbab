// SPDX-License-Identifier: MIT
//
// The error, cost and savings of each codec: squared errors on synthetic sets and on tensors, bits per value, encode
// and decode rates, the time of attention interleaved with float32 pages, and the loss in model quality.

#include <kvcache/cache/any_codec.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../examples/support/codec_flag.hpp"
#include "../examples/support/guarded.hpp"
#include "codec/answers.hpp"
#include "codec/errors.hpp"
#include "codec/quality.hpp"
#include "codec/sets.hpp"
#include "codec/speed.hpp"
#include "support/must.hpp"
#include "support/rows.hpp"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace kv = kvcache;

namespace {

// A codec with transformed keys quantized per channel over 64 tokens and transformed values: 4.5 bits per value.
struct rotated_channels {
    using role = kv::codec_role;
    [[nodiscard]] auto open(kv::page_shape shape) const {
        return kv::codec::mixed_kv{kv::codec::hadamard{kv::codec::int4_per_channel{.group = 64}},
                                   kv::codec::hadamard<kv::codec::int4>{}}
            .open(shape);
    }
};

using codecs = std::tuple<
    kv::codec::bf16, kv::codec::f16, kv::codec::int8, kv::codec::int8_grouped, kv::codec::int4,
    kv::codec::int4_per_channel, kv::codec::hadamard<kv::codec::int4>, kv::codec::hadamard<kv::codec::int4_per_channel>,
    rotated_channels, kv::codec::hadamard<kv::codec::int8>, kv::codec::codebook<5>, kv::codec::codebook<4>,
    kv::codec::codebook<3>, kv::codec::codebook<2>, kv::codec::mixed_kv<kv::codec::delta<4>, kv::codec::codebook<4>>,
    kv::codec::mixed_kv<kv::codec::delta<3>, kv::codec::codebook<3>>,
    kv::codec::mixed_kv<kv::codec::int4_per_channel, kv::codec::int4>,
    kv::codec::mixed_kv<kv::codec::hadamard<kv::codec::int4>, kv::codec::int4>, kv::codec::keep_sinks<kv::codec::int4>>;
using any = kv::any_codec<codecs>;

// Calls body(name, codec) for the codecs that the command line names, or for those of the list.
template <class Body>
void for_codecs(const std::vector<std::string>& named, Body body) {
    for (const std::string& name : named)
        body(name, *support::read_codec(name));
    if (!named.empty())
        return;
    const auto one = [&](const auto& policy) {
        using type = std::decay_t<decltype(policy)>;
        body(std::is_same_v<type, rotated_channels> ? "mixed_kv<hadamard<int4_per_channel{64}>, hadamard<int4>>"
                                                    : kv::type_name<type>(),
             *any::named(kv::type_name<type>()));
    };
    std::apply([&](const auto&... policy) { (one(policy), ...); }, codecs{});
}

struct options {
    std::vector<std::string> tensors, models, texts, codecs;
    std::string json, filter;
    std::size_t head_dim = 128, window = 4096, windows = 8, questions = 100, cached = 1024, past = 262144;
    bool no_speed = false, no_errors = false;
};

class report {
public:
    static constexpr std::uint32_t page_tokens = 64;

    explicit report(const options& from) : of_(from) {}

    void errors() {
        auto sets = bench::synthetic_sets(4096, 128, 0);
        for (const std::string& file : of_.tensors)
            sets.push_back(bench::tensor_set(file, of_.head_dim));
        std::printf("%-34s %-20s %7s %10s %10s %9s %9s %9s\n", "codec", "set", "bits", "keys", "values", "products",
                    "encode", "decode");
        for (const auto& set : sets)
            for_codecs(of_.codecs, [&](const std::string& name, const auto& codec) {
                if (!wanted(name))
                    return;
                const auto made = bench::measure(codec, set, page_tokens);
                std::printf("%-34s %-20s %7.3f %10.3g %10.3g %9.4f %9.2f %9.2f\n", name.c_str(), set.name.c_str(),
                            made.bits_per_value, made.keys, made.values, made.products, made.encode_gbps,
                            made.decode_gbps);
                auto& row = rows_.emplace_back(start(name, set.name));
                row["bits_per_value"] = made.bits_per_value;
                row["rel_mse"] = made.keys;
                row["rel_mse_values"] = made.values;
                row["rel_ip"] = made.products;
                row["encode_gbps"] = made.encode_gbps;
                row["decode_gbps"] = made.decode_gbps;
            });
    }

    // Measures one token's attention over the pages of each codec and of float32, interleaved.
    void speed() {
        struct place {
            const char* name;
            std::uint32_t kv_heads, group;
            std::size_t tokens;
        };
        const place places[] = {{"attention in memory", 2, 1, of_.past},
                                {"attention in memory, 4 heads a KV head", 2, 4, of_.past},
                                {"attention in cache", 1, 1, of_.cached},
                                {"attention in cache, 4 heads a KV head", 1, 4, of_.cached}};
        for (const place& at : places) {
            bench::attended_past plain(kv::codec::f32{}, at.kv_heads, at.group, at.tokens);
            for_codecs(of_.codecs, [&](const std::string& name, const auto& codec) {
                if (!wanted(name))
                    return;
                bench::attended_past quantized(codec, at.kv_heads, at.group, at.tokens);
                bench::samples ratio, micros;
                (void)plain(), (void)quantized();
                for (int again = 0; again < (at.tokens > 10000 ? 5 : 200); ++again) {
                    const double base = plain(), own = quantized();
                    ratio.add(base / own);
                    micros.add(own * 1e6);
                }
                std::printf("%-34s %-40s %7.2f times as fast as f32, %10.1f us\n", name.c_str(), at.name,
                            ratio.median(), micros.median());
                rows_.emplace_back(start(name, at.name))["attention_ratio_f32"] = ratio.median();
            });
        }
    }

    void quality(const std::string& directory, const std::string& text) {
        const auto loaded = bench::must(kv::load_model(directory));
        const auto words = bench::must(kv::tokenizer::open(directory));
        std::ifstream in(text);
        const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
        const auto ids = bench::must(words.encode(std::string_view(all).substr(0, 400000), {}));
        const std::size_t size = std::min(of_.window, loaded.model.max_positions());
        kv::thread_pool threads(2);
        std::vector<std::vector<kv::token_id>> windows;
        for (std::size_t at = 0; at + size <= ids.size() && windows.size() < of_.windows; at += size)
            windows.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(at),
                                 ids.begin() + static_cast<std::ptrdiff_t>(at + size));
        if (windows.empty())
            throw std::runtime_error(text + ": no window of " + std::to_string(size) + " tokens");
        const std::string set = directory.substr(directory.find_last_of('/') + 1) + ", " +
                                std::to_string(windows.size()) + " windows of " + std::to_string(size);
        std::vector<kv::matrix> exact;
        bench::quality_sum self;
        for (const auto& window : windows) {
            exact.push_back(bench::logits_of_window(loaded.model, threads, kv::codec::f32{}, window, page_tokens));
            self.add(exact.back(), exact.back(), std::span(window).subspan(1));
        }
        const auto base = self.mean();
        const bench::question_set asked(directory, words, of_.questions);
        const double answered =
            asked.size() > 0 ? asked.right(loaded.model, threads, kv::codec::f32{}, page_tokens) : 0.0;
        std::printf("%s: perplexity %.4f, %zu questions, %.1f %% answered with f32 pages\n", set.c_str(),
                    base.perplexity, asked.size(), 100.0 * answered);
        // One row: a codec with the model, or float32 pages with other weights.
        const auto compare = [&](const std::string& name, const kv::transformer& model, const auto& codec) {
            if (!wanted(name))
                return;
            bench::quality_sum sum;
            for (std::size_t i = 0; i < windows.size(); ++i)
                sum.add(exact[i], bench::logits_of_window(model, threads, codec, windows[i], page_tokens),
                        std::span(windows[i]).subspan(1));
            const auto made = sum.mean();
            std::printf("%-34s perplexity %9.4f (%+.3f %%)  KL %.3g  same token %.2f %%\n", name.c_str(),
                        made.perplexity, 100.0 * (made.perplexity / base.perplexity - 1.0), made.divergence,
                        100.0 * made.agreement);
            auto& row = rows_.emplace_back(start(name, set));
            const kv::page_shape shape = model.shape(page_tokens);
            row["bits_per_value"] =
                8.0 * static_cast<double>(codec.open(shape).page_bytes()) /
                static_cast<double>(2 * shape.layers * shape.kv_heads * shape.head_dim * shape.tokens);
            row["ppl"] = made.perplexity;
            row["ppl_f32"] = base.perplexity;
            row["kl"] = made.divergence;
            row["same_token"] = made.agreement;
            if (asked.size() == 0)
                return;
            row["questions"] = asked.size();
            row["accuracy_f32"] = answered;
            row["accuracy"] = asked.right(model, threads, codec, page_tokens);
            std::printf("%-34s %.1f %% answered\n", "", 100.0 * row["accuracy"].get<double>());
        };
        for_codecs(of_.codecs, [&](const std::string& name, const auto& codec) { compare(name, loaded.model, codec); });
        compare("int8 products", loaded.model.in_int8(threads), kv::codec::f32{});
    }

    void write() const {
        if (of_.json.empty())
            return;
        std::ofstream out(of_.json);
        out << rows_.dump(1) << '\n';
        out.close();
        if (out.fail())
            throw std::runtime_error(of_.json + ": cannot be written");
    }

private:
    [[nodiscard]] bool wanted(const std::string& name) const { return name.find(of_.filter) != std::string::npos; }
    [[nodiscard]] static nlohmann::json start(const std::string& codec, const std::string& set) {
        nlohmann::json row = {{"codec", codec}, {"set", set}};
        for (const char* key : {"bits_per_value", "rel_mse", "rel_ip", "encode_gbps", "decode_gbps",
                                "attention_ratio_f32", "ppl", "ppl_f32", "kl"})
            row[key] = nullptr;
        return row;
    }

    const options& of_;
    nlohmann::json rows_ = nlohmann::json::array();
};

int program(int count, char** words) {
    options given;
    CLI::App app("What each codec keeps, costs and saves.");
    app.add_option("--tensor", given.tensors, "Files of float32 rows to code too");
    app.add_option("--head-dim", given.head_dim, "Numbers a row of those files");
    app.add_option("--model", given.models, "Model directories for perplexity, each with a --text");
    app.add_option("--text", given.texts, "Texts for them");
    app.add_option("--window", given.window, "Tokens a window, or as many positions as a model has");
    app.add_option("--windows", given.windows, "Windows at most");
    app.add_option("--questions", given.questions, "Questions of the model directory at most");
    app.add_option("--past", given.past, "Tokens of the attention beyond the cache");
    app.add_option("--cached", given.cached, "Tokens of the attention inside the cache");
    app.add_option("--filter", given.filter, "Only codecs whose names contain this");
    app.add_option("--codec", given.codecs, "Measures this codec, NAME or k=NAME,v=NAME, and not the list; repeatable")
        ->check(support::codec_validator());
    app.add_option("--json", given.json, "A file for the rows");
    app.add_flag("--no-speed", given.no_speed, "No attention");
    app.add_flag("--no-errors", given.no_errors, "No sets");
    CLI11_PARSE(app, count, words);
    report all(given);
    if (!given.no_errors)
        all.errors();
    if (!given.no_speed)
        all.speed();
    if (given.models.size() != given.texts.size())
        throw std::runtime_error("each --model has a --text");
    for (std::size_t i = 0; i < given.models.size(); ++i)
        all.quality(given.models[i], given.texts[i]);
    all.write();
    return 0;
}

} // namespace

int main(int count, char** words) {
    return support::guarded("codec", [&] { return program(count, words); });
}
