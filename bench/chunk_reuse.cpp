// SPDX-License-Identifier: MIT
//
// The savings and costs of chunk reuse: the time to the first token over documents that are prefilled alone, including
// recomputation, compared with a full prefill; and the effect of each strategy on the answers of a trained model.

#include <kvcache/cache/any_codec.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "chunks/arms.hpp"
#include "chunks/facts.hpp"
#include "chunks/presets.hpp"
#include "chunks/quality.hpp"
#include "chunks/questions.hpp"
#include "chunks/random_rows.hpp"
#include "chunks/speed.hpp"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace {

using page_codecs = kvcache::any_codec<
    std::tuple<kvcache::codec::bf16, kvcache::codec::int8, kvcache::codec::hadamard<kvcache::codec::int4>,
               kvcache::codec::codebook<4>, kvcache::codec::codebook<3>>>;

struct flags {
    std::vector<std::string> parts{"speed", "presets", "quality", "codecs"}, kinds{"two", "refer"}, strategies;
    std::vector<std::string> codecs{"bf16", "int8", "hadamard<int4>", "codebook<4>", "codebook<3>"};
    std::string model = "examples/models/worlds-2m", text, facts, json;

    [[nodiscard]] bool notes() const { return text.empty() && facts.empty(); }
    std::size_t threads = 1, rounds = 2, orders = 3, chunks = 8, size = 512, questions = 40;
};

void print(const bench::chunk_row& r) {
    if (r.part == "codecs") {
        std::printf("%-16s %-9s right %6.2f%% of %6.2f%%  kl %.5f  argmax %6.2f%%  ttft %7.2f of %7.2f ms  "
                    "reused %6.2f MiB\n",
                    r.codec.c_str(), r.strategy.c_str(), 100.0 * r.accuracy, 100.0 * r.full_accuracy, r.kl,
                    100.0 * r.argmax_agreement, r.ttft_ms, r.full_ttft_ms, r.shared_mib);
    } else if (r.part != "quality") {
        std::printf("%-20s ttft %9.1f ms  full %9.1f ms  %6.2fx  forward tokens %7.1f of %6.0f (bound %5.1fx)  "
                    "recomputed %5.1f%%  shared %6.1f MiB  kl %.5f\n",
                    r.strategy.c_str(), r.ttft_ms, r.full_ttft_ms, r.full_ttft_ms / r.ttft_ms, r.forward_tokens,
                    r.full_forward_tokens, r.full_forward_tokens / r.forward_tokens, 100.0 * r.recomputed_share,
                    r.shared_mib, r.kl);
    } else {
        const double gap = r.full_accuracy - r.none_accuracy;
        std::printf("%-20s recomputed %5.1f%%  kl %.5f (%+6.1f%%)  argmax %6.2f%%  accuracy %6.2f%% of %6.2f%%  gap "
                    "closed %s  p(random) %.4f  ttft %6.2f of %6.2f ms\n",
                    r.strategy.c_str(), 100.0 * r.recomputed_share, r.kl,
                    100.0 * (r.kl / std::max(r.kl_none, 1e-30) - 1.0), 100.0 * r.argmax_agreement, 100.0 * r.accuracy,
                    100.0 * r.full_accuracy,
                    gap > 0.0 ? (std::to_string(100.0 * (r.accuracy - r.none_accuracy) / gap) + "%").c_str() : "-",
                    r.p_random, r.ttft_ms, r.full_ttft_ms);
    }
    std::fflush(stdout);
}

bool write_json(const std::string& file, const std::vector<bench::chunk_row>& rows) {
    auto list = nlohmann::json::array();
    for (const bench::chunk_row& r : rows)
        list.push_back({{"part", r.part},
                        {"strategy", r.strategy},
                        {"codec", r.codec},
                        {"ttft_ms", r.ttft_ms},
                        {"full_ttft_ms", r.full_ttft_ms},
                        {"speedup", r.full_ttft_ms / r.ttft_ms},
                        {"forward_tokens", r.forward_tokens},
                        {"full_forward_tokens", r.full_forward_tokens},
                        {"recomputed_share", r.recomputed_share},
                        {"shared_mib", r.shared_mib},
                        {"kl", r.kl},
                        {"kl_none", r.kl_none},
                        {"argmax_agreement", r.argmax_agreement},
                        {"accuracy", r.accuracy},
                        {"full_accuracy", r.full_accuracy},
                        {"p_random", r.p_random},
                        {"questions", r.questions}});
    std::ofstream out(file);
    out << list.dump(1) << '\n';
    out.close();
    return !out.fail();
}

// The questions that the flags choose, with their exact answers.
bench::chunk_quality asking(const flags& f) {
    return {f.model, f.threads, f.text.empty() ? "<|im_end|>" : "", [&](const kvcache::tokenizer& words) {
                if (!f.facts.empty())
                    return bench::questions_about_facts(f.facts, {f.chunks, f.size, f.orders, f.questions}, words);
                return f.text.empty()
                           ? bench::questions_about_notes(f.model, f.kinds, f.orders, words)
                           : bench::questions_about_text(f.text, {f.chunks, f.size, f.orders, f.questions}, words);
            }};
}

int run(const flags& f) {
    std::vector<bench::chunk_row> all;
    const auto wanted = [&](const char* part) { return std::ranges::find(f.parts, part) != f.parts.end(); };
    if (wanted("speed")) {
        bench::chunk_speed speed(f.threads, f.rounds, f.chunks, f.size);
        std::vector<bench::chunk_row> rows;
        const auto time = [&](const char* name, auto policy) {
            speed.run(name, policy, rows);
            print(rows.back());
        };
        time("none", kvcache::recompute::none{});
        time("head 32", kvcache::recompute::chunk_head{});
        time("first page", kvcache::recompute::chunk_head{.rows = 16});
        time("blend 15 %", kvcache::recompute::blend{});
        time("blend gradual", kvcache::recompute::gradual_blend{});
        time("boundary 16", kvcache::recompute::chunk_boundary{});
        time("random 15 %", bench::random_rows{});
        speed.zero_reuse(1024, 8, rows);
        print(rows.back());
        all.insert(all.end(), rows.begin(), rows.end());
    }
    if (wanted("presets")) {
        bench::chunk_speed speed(f.threads, f.rounds, f.chunks, f.size);
        std::vector<bench::chunk_row> rows;
        bench::for_presets([&](const auto& as) {
            speed.run(as, rows);
            print(rows.back());
        });
        all.insert(all.end(), rows.begin(), rows.end());
    }
    if (wanted("quality")) {
        bench::chunk_quality quality = asking(f);
        std::vector<bench::chunk_row> rows;
        const auto ask = [&](const char* name, auto policy, bool bottom_right = false) {
            const bool control = std::string_view(name) == "none" || std::string_view(name) == "random";
            if (!control && !f.strategies.empty() && std::ranges::find(f.strategies, name) == f.strategies.end())
                return;
            quality.run(name, policy, bottom_right, rows);
            print(rows.back());
        };
        ask("none", kvcache::recompute::none{});
        ask("random", bench::random_rows{});
        ask("head 2", kvcache::recompute::chunk_head{.rows = 2, .page_aligned = false});
        ask("head 3", kvcache::recompute::chunk_head{.rows = 3, .page_aligned = false});
        ask("head 4", kvcache::recompute::chunk_head{.rows = 4, .page_aligned = false});
        ask("head 8", kvcache::recompute::chunk_head{.rows = 8, .page_aligned = false});
        ask("boundary 2", kvcache::recompute::chunk_boundary{.rows = 2});
        ask("boundary 4", kvcache::recompute::chunk_boundary{.rows = 4});
        if (!f.notes()) { // longer documents
            ask("head 16", kvcache::recompute::chunk_head{.rows = 16, .page_aligned = false});
            ask("boundary 8", kvcache::recompute::chunk_boundary{.rows = 8});
            ask("boundary 16", kvcache::recompute::chunk_boundary{.rows = 16});
        }
        ask("blend", kvcache::recompute::blend{});
        ask("blend of values", kvcache::recompute::blend{.compares = kvcache::deviation_metric::values});
        ask("blend bottom-right", kvcache::recompute::blend{}, true);
        ask("blend gradual", kvcache::recompute::gradual_blend{});
        ask("blend 50 %", kvcache::recompute::blend{.fraction = 0.5});
        ask("full", kvcache::recompute::full{});
        std::printf("%zu questions\n", quality.questions());
        if (f.strategies.empty())
            std::printf("exact against bottom-right mask: p %.4f\n", quality.p_between("blend", "blend bottom-right"));
        all.insert(all.end(), rows.begin(), rows.end());
    }
    if (wanted("codecs")) {
        bench::chunk_quality quality = asking(f);
        const auto ask = [&](const char* strategy, auto policy) {
            std::vector<bench::chunk_row> rows;
            if (!f.strategies.empty() && std::ranges::find(f.strategies, strategy) == f.strategies.end())
                return;
            quality.run(strategy, policy, false, rows);
            for (const std::string& name : f.codecs)
                quality.run(strategy, policy, false, rows, bench::must(page_codecs::named(name)), name);
            for (bench::chunk_row& row : rows) {
                row.part = "codecs";
                print(row);
            }
            all.insert(all.end(), rows.begin(), rows.end());
        };
        ask("none", kvcache::recompute::none{});
        ask("head 16", kvcache::recompute::chunk_head{.rows = 16, .page_aligned = false});
        ask("blend", kvcache::recompute::blend{});
    }
    if (!f.json.empty() && !write_json(f.json, all))
        return std::fprintf(stderr, "chunk_reuse: %s cannot be written\n", f.json.c_str()), 1;
    return 0;
}

int program(int count, char** words) {
    flags f;
    CLI::App app("What reusing chunks saves and what it costs");
    app.add_option("--part", f.parts)->delimiter(',')->check(CLI::IsMember(f.parts))->capture_default_str();
    app.add_option("--model", f.model, "A directory with a model, and questions.jsonl or see --text")
        ->capture_default_str();
    app.add_option("--text", f.text, "Asks the model to go on behind --chunks pieces of this text, of --size tokens");
    app.add_option("--facts", f.facts,
                   "Asks a model of ChatML for facts in --chunks passages of this text, of about --size tokens");
    app.add_option("--questions", f.questions, "At most so many about the text")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app.add_option("--strategies", f.strategies,
                   "Only these of --part quality and codecs; quality has none and random too")
        ->delimiter(',');
    app.add_option("--codecs", f.codecs, "Codecs of --part codecs, besides f32: " + page_codecs::names())
        ->delimiter(',');
    app.add_option("--kinds", f.kinds, "Kinds of questions")->delimiter(',')->capture_default_str();
    app.add_option("--orders", f.orders, "Orders of its documents that each question is asked with")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--chunks", f.chunks)->check(CLI::Range(2, 1024))->capture_default_str();
    app.add_option("--size", f.size, "Tokens of a chunk")->check(CLI::Range(32, 65536))->capture_default_str();
    app.add_option("--threads", f.threads)->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--rounds", f.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    app.add_option("--json", f.json, "Writes the rows here");
    CLI11_PARSE(app, count, words);
    return run(f);
}

} // namespace

int main(int count, char** words) {
    return support::guarded("chunk_reuse", [&] { return program(count, words); });
}
