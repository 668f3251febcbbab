// SPDX-License-Identifier: MIT
//
// The cost of the cache itself, in instructions: one prompt with the cache and without it, one next turn and its new
// tokens alone. Clocks cannot resolve one percent, so each of the four is a function that callgrind can count
// separately:
//   valgrind --tool=callgrind --collect-atstart=no --toggle-collect='next_turn*' build/bench/bench/cache_work
// tools/count_cache_work.py runs all four and prints the ratios.

#include <kvcache/kvcache.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <utility>

#include "../examples/support/guarded.hpp"
#include "model/reuse.hpp"
#include "model/subject.hpp"
#include <CLI/CLI.hpp>

// The functions are in no namespace, so that callgrind can select them by a simple name pattern.
[[gnu::noinline]] void prompt_through_the_cache(bench::pipeline_type& pipeline, const bench::tokens& prompt) {
    static_cast<void>(bench::detail::ask(pipeline, prompt));
}
[[gnu::noinline]] void prompt_past_the_cache(bench::uncached& alone, const bench::tokens& prompt) {
    static_cast<void>(alone.ask(prompt));
}
[[gnu::noinline]] void next_turn(bench::pipeline_type& pipeline, const bench::tokens& history) {
    static_cast<void>(bench::detail::ask(pipeline, history));
}
[[gnu::noinline]] void new_tokens_alone(bench::pipeline_type& pipeline, bench::sequence& said,
                                        const bench::tokens& fresh) {
    static_cast<void>(bench::detail::run_alone(pipeline, said, fresh));
}

namespace {

// A model as wide as SmolLM2-135M with a smaller vocabulary, since random weights are slow to generate under callgrind.
void run(std::size_t layers, std::size_t length, std::size_t fresh) {
    const auto model = kvcache::make_random_model({.hidden_size = 576,
                                                   .intermediate_size = 1536,
                                                   .layers = layers,
                                                   .heads = 9,
                                                   .kv_heads = 3,
                                                   .head_dim = 64,
                                                   .vocabulary = 4096,
                                                   .max_positions = 16384,
                                                   .tied_head = true},
                                                  1);
    kvcache::thread_pool alone;
    bench::subject of(model, 8 * (length + fresh), 256);
    bench::pipeline_type pipeline(of.pages(), model, alone, of.max_batch_tokens());
    bench::uncached past(of, alone);
    for (int round = 0; round < 2; ++round) { // the first round allocates buffers
        prompt_through_the_cache(pipeline, of.fresh(length));
        prompt_past_the_cache(past, of.fresh(length));

        bench::tokens history = of.fresh(length);
        auto said = bench::must(pipeline.prefill(history));
        bench::detail::append(history, of.fresh(fresh));
        next_turn(pipeline, history);
        new_tokens_alone(pipeline, said.sequence, of.fresh(fresh));
    }
}

int program(int argc, char** argv) {
    CLI::App app("What the cache itself costs, for callgrind to count");
    std::size_t layers = 4, length = 512, fresh = 16;
    app.add_option("--layers", layers, "Of the model, as wide as SmolLM2-135M")->check(CLI::Range(1, 1000));
    app.add_option("--prompt", length, "Tokens of a prompt")->check(CLI::Range(1, 8192));
    app.add_option("--fresh", fresh, "Tokens that a next turn brings")->check(CLI::Range(1, 8192));
    CLI11_PARSE(app, argc, argv);
    run(layers, length, fresh);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return support::guarded("cache_work", [&] { return program(argc, argv); });
}
