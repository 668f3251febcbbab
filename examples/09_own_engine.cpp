// SPDX-License-Identifier: MIT
// A host with an engine and KV memory of its own. The cache says which blocks hold which tokens, and reads none of
// them. Prompts with reused blocks give the bits of prompts computed alone. test:
#include <kvcache/cache.hpp>
#include <kvcache/cache/block_tables.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <random>
#include <span>
#include <vector>

#include "support/guarded.hpp"
#include "support/own_engine.hpp"

namespace {

using tokens = std::vector<kvcache::token_id>;
using support::own_engine;

/// All that a host needs to write to reuse what its engine has computed.
class prefix_cache {
public:
    using cache = kvcache::cache<kvcache::storage::external>;

    // copy: a sequence is to write into a block that it shares with others.
    prefix_cache(own_engine& engine, std::size_t blocks)
        : engine_(engine),
          cache_(kvcache::make_cache(
              {.shape = {.tokens = own_engine::block_tokens}, .limit = {.pages = blocks}, .merge_equal_pages = false},
              kvcache::storage::external{.copy = [this](auto from, auto to) { return engine_.copy_block(from, to); },
                                         .on_evict = [this](auto) { ++evicted; }})) {}

    struct answer {
        cache::sequence sequence;
        std::size_t reused = 0;
        std::vector<float> logits;
    };

    /// Answers a prompt: reuses the blocks of its longest known prefix, and computes the rest.
    kvcache::result<answer> ask(std::span<const kvcache::token_id> prompt) {
        auto request = cache_.acquire(prompt);
        if (!request)
            return request.error(); // out of memory: every block belongs to a living sequence
        const auto rest = prompt.subspan(request->lease.first());
        return answer{std::move(request->sequence), request->lease.first(), compute(request->lease, rest)};
    }
    /// Continues a sequence.
    kvcache::result<std::vector<float>> extend(cache::sequence& sequence, std::span<const kvcache::token_id> more) {
        auto lease = cache_.reserve(sequence, more.size());
        if (!lease)
            return lease.error();
        return compute(*lease, more);
    }

    std::size_t evicted = 0; // blocks

private:
    std::vector<float> compute(cache::lease& lease, std::span<const kvcache::token_id> rows) {
        table_.clear();
        table_.append(lease.pages().table);
        auto logits = engine_.run(rows, lease.first(), table_.blocks(0));
        lease.commit(rows); // from now on other prompts can reuse them
        return logits;
    }

    own_engine& engine_;
    cache cache_;
    kvcache::block_tables table_{own_engine::block_tokens};
};

/// The first `kept` tokens of a prompt, then `more` others.
tokens edited(tokens prompt, std::size_t kept, std::size_t more, std::uint32_t seed) {
    prompt.resize(kept);
    std::mt19937 dice(seed);
    for (std::size_t i = 0; i < more; ++i)
        prompt.push_back(kvcache::token_id(dice() % support::own_transformer::vocabulary));
    return prompt;
}

int program() {
    constexpr std::size_t blocks = 12;
    own_engine engine(blocks);
    prefix_cache cache(engine, blocks);
    bool right = true;
    const auto report = [&](const char* what, std::size_t reused, const tokens& prompt, const std::vector<float>& got) {
        const bool same = got == engine.model().logits_after(prompt);
        right = right && same;
        std::cout << what << ": " << reused << " of " << prompt.size() << " tokens reused, "
                  << (same ? "the same bits as alone\n" : "OTHER BITS than alone\n");
    };
    const auto ask = [&](const char* what, const tokens& prompt) {
        auto answer = cache.ask(prompt);
        report(what, answer->reused, prompt, answer->logits);
        return std::move(answer->sequence);
    };

    const tokens prompt = edited({}, 0, 60, 1), forked = edited(prompt, 37, 20, 3);
    {
        const auto first = ask("a prompt", prompt);
        (void)ask("the same prompt", prompt);
        (void)ask("a prompt with the same first 40 tokens", edited(prompt, 40, 30, 2));

        auto fork = first.fork(37); // inside a block: the first write copies it
        report("a fork after 37 tokens", 37, forked, *cache.extend(fork, std::span(forked).subspan(37)));
    }
    for (std::uint32_t other = 10; other < 14; ++other)
        (void)ask("another prompt", edited({}, 0, 90, other));
    (void)ask("the first prompt again", prompt);
    std::cout << cache.evicted << " blocks were evicted\n";
    return right && cache.evicted > 0 ? 0 : 1;
}

} // namespace

int main() {
    return support::guarded("09_own_engine", [&] { return program(); });
}
