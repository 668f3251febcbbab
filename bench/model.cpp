// SPDX-License-Identifier: MIT
//
// A whole model, end to end: prefill and generation at several depths, compared with the machine's limits, and the time
// to the first token with and without reuse from the cache. All scenarios are interleaved, round by round. The last
// line is the score.

#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "model/reuse.hpp"
#include "model/speed.hpp"
#include "model/subject.hpp"
#include "support/machine.hpp"
#include "support/rows.hpp"
#include <CLI/CLI.hpp>
#include <unistd.h>

namespace {

struct flags {
    std::string model, json;
    bool bf16 = false, int8 = false, paced = false;
    std::vector<std::size_t> threads{1, 2}, depths{0, 2048, 8192};
    std::vector<std::string> only{"prefill", "generation", "users", "chat", "zero_reuse", "shared_system", "documents"};
    std::size_t rounds = 3, prompt = 512, steps = 32, max_batch_tokens = 256;
    std::vector<std::int32_t> ids;
};

// A random model with the shape of SmolLM2-135M.
kvcache::transformer random_model(bool bf16) {
    const kvcache::model_config config{.hidden_size = 576,
                                       .intermediate_size = 1536,
                                       .layers = 30,
                                       .heads = 9,
                                       .kv_heads = 3,
                                       .head_dim = 64,
                                       .vocabulary = 49152,
                                       .max_positions = 16384,
                                       .tied_head = true};
    return kvcache::make_random_model(config, 1, bf16 ? kvcache::dtype::bf16 : kvcache::dtype::f32);
}

void progress(std::size_t done, std::size_t of) {
    if (isatty(STDERR_FILENO) != 0)
        std::fprintf(stderr, "\r\033[K%zu of %zu", done, of);
    if (isatty(STDERR_FILENO) != 0 && done == of)
        std::fputs("\r\033[K", stderr);
}

// Prints the most likely tokens after a prompt, to verify that another program computes the same model.
int say(const kvcache::transformer& model, const flags& f) {
    bench::subject subject(model, f.ids.size() + f.steps + 64, f.max_batch_tokens);
    kvcache::thread_pool pool(f.threads.front());
    bench::pipeline_type runner(subject.pages(), model, pool, f.max_batch_tokens);
    bench::tokens prompt;
    for (const std::int32_t id : f.ids)
        prompt.push_back(kvcache::token_id{id});
    const auto answer = bench::must(kvcache::generate(runner, prompt, {}, {.max_tokens = f.steps},
                                                      [](kvcache::token_id token, std::span<const float>) {
                                                          std::printf("%d ", index_of(token));
                                                          return true;
                                                      }));
    std::printf("\n");
    return answer.ids.size() == f.steps ? 0 : 1;
}

int run(const flags& f) {
    const auto stored = f.model.empty() ? random_model(f.bf16) : bench::must(kvcache::load_model(f.model)).model;
    kvcache::thread_pool all(f.threads.back());
    const auto model = f.int8 ? stored.in_int8(all) : stored;
    if (!f.ids.empty())
        return say(model, f);
    if (f.paced) {
        bench::subject paced(model, f.depths.back(), f.max_batch_tokens);
        bench::pipeline_type runner(paced.pages(), model, all, f.max_batch_tokens);
        bench::paced_bound(paced, runner);
        return 0;
    }
    const std::size_t held = 4096; // for the prompts of the reuse scenarios and the ones they evict
    std::size_t rows = held;
    for (const std::size_t depth : f.depths)
        rows += depth + f.prompt + 64;
    bench::subject subject(model, rows, f.max_batch_tokens);

    std::deque<kvcache::thread_pool> thread_pools;
    std::deque<bench::pipeline_type> pipelines;
    std::deque<bench::machine_limits> limits;
    for (const std::size_t n : f.threads) {
        thread_pools.emplace_back(n);
        pipelines.emplace_back(subject.pages(), model, thread_pools.back(), f.max_batch_tokens);
        limits.emplace_back();
    }
    const auto wanted = [&](const char* name) { return std::ranges::find(f.only, name) != f.only.end(); };
    std::vector<bench::sequence> pasts;
    if (wanted("prefill") || wanted("generation") || wanted("users"))
        for (const std::size_t depth : f.depths)
            pasts.push_back(subject.past(depth));

    std::vector<std::function<void(const bench::visit&)>> scenarios;
    for (bench::sequence& past : pasts) {
        if (wanted("prefill"))
            scenarios.emplace_back([&](const bench::visit& at) { bench::prefill(at, past, f.prompt); });
        if (wanted("generation"))
            scenarios.emplace_back([&](const bench::visit& at) { bench::generation(at, past, f.steps); });
        if (wanted("users") && past.size() == 2048)
            scenarios.emplace_back([&](const bench::visit& at) { bench::shared_generation(at, past, 16, 8); });
    }
    if (wanted("chat"))
        scenarios.emplace_back([](const bench::visit& at) { bench::chat(at, {}); });
    if (wanted("zero_reuse"))
        scenarios.emplace_back([&](const bench::visit& at) { bench::zero_reuse(at, f.prompt); });
    if (wanted("shared_system"))
        scenarios.emplace_back([](const bench::visit& at) { bench::shared_system(at, 1024, 32, 6); });
    if (wanted("documents"))
        scenarios.emplace_back([](const bench::visit& at) { bench::permuted_documents(at, 64, 128, 32); });

    bench::stream memory;
    bench::journal book;
    std::size_t done = 0;
    for (std::size_t round = 0; round < f.rounds; ++round)
        for (const auto& scenario : scenarios)
            for (std::size_t t = 0; t < thread_pools.size(); ++t) {
                limits[t].stream.add(memory(thread_pools[t]));
                limits[t].peak.add(bench::fma_peak(thread_pools[t]));
                scenario({subject, thread_pools[t], pipelines[t], limits[t], book});
                progress(++done, f.rounds * scenarios.size() * thread_pools.size());
            }

    auto rows_made = book.rows();
    for (std::size_t t = 0; t < thread_pools.size(); ++t) {
        const auto limit = [&](const char* name, double value, const char* unit) {
            rows_made.push_back(bench::make_row(name, thread_pools[t].threads(), 1e-9 * value, unit, 0.0));
        };
        limit("stream", limits[t].stream.median(), "GB/s");
        limit("fma_peak", limits[t].peak.most(), "GFLOP/s");
    }
    bench::print_heading();
    for (const auto& row : rows_made)
        bench::print(row);
    if (!f.json.empty() && !bench::write_json(f.json, rows_made)) {
        std::fprintf(stderr, "model: %s cannot be written\n", f.json.c_str());
        return 1;
    }
    bench::print_score("model", rows_made);
    return 0;
}

int program(int count, char** words) {
    flags f;
    CLI::App app("A whole model beside what the machine can do at most");
    app.add_option("--model", f.model, "A Hugging Face directory; without it, random weights as SmolLM2-135M has");
    app.add_flag("--bf16", f.bf16, "Random weights in bfloat16");
    app.add_flag("--int8", f.int8, "Weights and activations rounded to int8");
    app.add_option("--threads", f.threads)->delimiter(',')->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--depths", f.depths, "Positions before a prompt or an answer")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--only", f.only, "Scenarios")->delimiter(',')->check(CLI::IsMember(f.only))->capture_default_str();
    app.add_option("--rounds", f.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    app.add_option("--prompt", f.prompt, "Tokens of a prefill")->check(CLI::Range(1, 65536))->capture_default_str();
    app.add_option("--steps", f.steps, "Tokens of an answer")->check(CLI::Range(1, 65536))->capture_default_str();
    app.add_option("--max-batch-tokens", f.max_batch_tokens, "Most rows in one forward pass")
        ->check(CLI::Range(1, 65536))
        ->capture_default_str();
    app.add_option("--ids", f.ids, "Measures nothing, says --steps tokens behind these")->delimiter(',');
    app.add_flag("--paced", f.paced, "Measures the bound of a chat alone, a turn a line of standard input: NEW REPLY");
    app.add_option("--json", f.json, "Writes the rows here");
    CLI11_PARSE(app, count, words);
    return run(f);
}

} // namespace

int main(int count, char** words) {
    return support::guarded("model", [&] { return program(count, words); });
}
