// SPDX-License-Identifier: MIT
//
// What the cache itself costs, in instructions: one prompt through it and past it, one next turn and its new tokens
// alone. Clocks are too coarse for a hundredth; so each of the four is a function that callgrind can count by itself:
//   valgrind --tool=callgrind --collect-atstart=no --toggle-collect='next_turn*' build/bench/bench/cache_work
// tools/count_cache_work.py runs all four and prints the ratios.

#include <kvcache/kvcache.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <utility>

#include "model/reuse.hpp"
#include "model/subject.hpp"
#include <CLI/CLI.hpp>

// Outside of any namespace, so that a pattern of their names is all that callgrind needs.
[[gnu::noinline]] void prompt_through_the_cache(bench::pipeline& through, const bench::tokens& prompt) {
    static_cast<void>(bench::detail::ask(through, prompt));
}
[[gnu::noinline]] void prompt_past_the_cache(bench::uncached& alone, const bench::tokens& prompt) {
    static_cast<void>(alone.ask(prompt));
}
[[gnu::noinline]] void next_turn(bench::pipeline& through, const bench::tokens& history) {
    static_cast<void>(bench::detail::ask(through, history));
}
[[gnu::noinline]] void new_tokens_alone(bench::pipeline& through, bench::sequence& said, const bench::tokens& fresh) {
    static_cast<void>(bench::detail::run_alone(through, said, fresh));
}

namespace {

// As wide as SmolLM2-135M, with fewer words: random ones take long to make under callgrind.
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
    kvcache::team alone;
    bench::subject of(model, 8 * (length + fresh), 256);
    bench::pipeline through(of.pages(), model, alone, of.split());
    bench::uncached past(of, alone);
    for (int round = 0; round < 2; ++round) { // the first makes room
        prompt_through_the_cache(through, of.fresh(length));
        prompt_past_the_cache(past, of.fresh(length));

        bench::tokens history = of.fresh(length);
        auto said = bench::must(through.feed(history));
        bench::detail::append(history, of.fresh(fresh));
        next_turn(through, history);
        new_tokens_alone(through, said.sequence, of.fresh(fresh));
    }
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app("What the cache itself costs, for callgrind to count");
    std::size_t layers = 4, length = 512, fresh = 16;
    app.add_option("--layers", layers, "Of the model, as wide as SmolLM2-135M")->check(CLI::Range(1, 1000));
    app.add_option("--prompt", length, "Tokens of a prompt")->check(CLI::Range(1, 8192));
    app.add_option("--fresh", fresh, "Tokens that a next turn brings")->check(CLI::Range(1, 8192));
    CLI11_PARSE(app, argc, argv);
    try {
        run(layers, length, fresh);
    } catch (const std::exception& fault) {
        std::fprintf(stderr, "cache_work: %s\n", fault.what());
        return 1;
    }
}
