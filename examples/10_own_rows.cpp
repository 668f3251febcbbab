// SPDX-License-Identifier: MIT
// A host with a transformer and attention of its own. Only keys and values are in the cache, as rows that the host's
// attention reads in place. Prompts with reused rows give the bits of prompts computed without a cache.
// test:
#include <kvcache/cache.hpp>
#include <kvcache/codec/row_major.hpp>

#include <cstdint>
#include <iostream>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "support/guarded.hpp"
#include "support/own_transformer.hpp"

using namespace kvcache::literals;

namespace {

using model = support::own_transformer;
using tokens = std::vector<kvcache::token_id>;
using cache = kvcache::cache<kvcache::codec::nhd_f32>;

/// Computes the tokens of a lease and commits their rows. Returns the last logits.
std::vector<float> compute(cache::lease& lease, const model& host, std::span<const kvcache::token_id> more) {
    std::vector<float> logits;
    for (std::size_t row = 0; row < more.size(); ++row) {
        const std::size_t position = lease.first() + row;
        logits = host.step(
            more[row], position,
            [&](std::size_t layer, std::size_t head, const model::row_visitor& visit) {
                lease.for_each_run(kvcache::layer_id(layer), kvcache::head_id(head), [&](const auto& run) {
                    for (std::size_t i = 0; i < run.rows && run.position + i <= position; ++i)
                        visit(run.keys + i * run.stride, run.values + i * run.stride);
                });
            },
            [&](std::size_t layer, std::span<const float> keys, std::span<const float> values) {
                lease.write(kvcache::layer_id(layer), row, keys, values);
            });
    }
    lease.commit(more);
    return logits;
}

/// The first `kept` tokens of a prompt, then `more` others.
tokens edited(tokens prompt, std::size_t kept, std::size_t more, std::uint32_t seed) {
    prompt.resize(kept);
    std::mt19937 dice(seed);
    for (std::size_t i = 0; i < more; ++i)
        prompt.push_back(kvcache::token_id(dice() % model::vocabulary));
    return prompt;
}

int program() {
    const model host(1);
    cache store = kvcache::make_cache(
        {.shape = {.layers = model::layers, .kv_heads = model::kv_heads, .head_dim = model::head_dim, .tokens = 16},
         .limit = {.bytes = 1_MiB}},
        kvcache::codec::nhd_f32{});
    bool right = true;
    const auto report = [&](const char* what, std::size_t reused, const tokens& prompt, const std::vector<float>& got) {
        const bool same = got == host.logits_after(prompt);
        right = right && same;
        std::cout << what << ": " << reused << " of " << prompt.size() << " tokens reused, "
                  << (same ? "the same bits as without a cache\n" : "OTHER BITS than without a cache\n");
    };
    const auto ask = [&](const char* what, const tokens& prompt) {
        auto request = store.acquire(prompt);
        const std::size_t reused = request->lease.first();
        report(what, reused, prompt, compute(request->lease, host, std::span(prompt).subspan(reused)));
        return std::move(request->sequence);
    };

    const tokens prompt = edited({}, 0, 60, 1), forked = edited(prompt, 37, 20, 3);
    const auto first = ask("a prompt", prompt);
    (void)ask("the same prompt", prompt);
    (void)ask("a prompt with the same first 40 tokens", edited(prompt, 40, 30, 2));

    auto fork = first.fork(37); // inside a page: the first write copies it
    auto more = store.reserve(fork, forked.size() - 37);
    report("a fork after 37 tokens", 37, forked, compute(*more, host, std::span(forked).subspan(37)));
    return right && store.check() ? 0 : 1;
}

} // namespace

int main() {
    return support::guarded("10_own_rows", [&] { return program(); });
}
