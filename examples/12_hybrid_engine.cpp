// SPDX-License-Identifier: MIT
// A host whose model has a layer of full attention, one with a sliding window and one with a recurrent state. Its cache
// keeps all tokens of the first, the last tokens of the second, and snapshots of the third. Prompts with reused blocks
// give the bits of prompts computed alone. test:
#include <kvcache/cache.hpp>
#include <kvcache/codec/external.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/guarded.hpp"

namespace {

using tokens = std::vector<kvcache::token_id>;
constexpr std::uint32_t block_tokens = 8, width = 16, window = 20, vocabulary = 50;
constexpr std::size_t full_group = 0, window_group = 1, state_group = 2;
using row = std::array<float, width>;

/// What the three layers keep. The row of a key is followed by that of its value.
struct memory {
    std::vector<row> full, windowed; ///< (blocks, block_tokens, 2)
    std::vector<row> states;         ///< (blocks)

    [[nodiscard]] static std::size_t at(std::int32_t block, std::size_t token) {
        return (static_cast<std::size_t>(block) * block_tokens + token % block_tokens) * 2;
    }
};

/// The model. Each token is computed by itself, in order, so that no split of a prompt changes a bit.
class hybrid_model {
public:
    hybrid_model() {
        std::mt19937 dice(1);
        for (row& one : embedding_)
            for (float& number : one)
                number = static_cast<float>(dice() % 2001) / 1000.0f - 1.0f;
    }

    /// Runs one token at a position after a state. Its keys and values are written, and earlier ones read, where the
    /// tables say.
    [[nodiscard]] row run(kvcache::token_id token, std::size_t position, memory& kept, row& state,
                          std::span<const std::int32_t> full, std::span<const std::int32_t> windowed) const {
        row x = embedding_[static_cast<std::size_t>(index_of(token)) % vocabulary];
        attend(x, position, 0, kept.full, full);
        attend(x, position, position < window ? 0 : position - (window - 1), kept.windowed, windowed);
        for (std::size_t i = 0; i < width; ++i) {
            state[i] = 0.875f * state[i] + 0.125f * x[i];
            x[i] += state[i] * state[(i + 1) % width];
        }
        return x;
    }

private:
    static void attend(row& x, std::size_t position, std::size_t first, std::vector<row>& rows,
                       std::span<const std::int32_t> table) {
        const std::size_t own = memory::at(table[position / block_tokens], position);
        for (std::size_t i = 0; i < width; ++i) {
            rows[own][i] = x[i] * 0.5f + x[(i + 3) % width] * static_cast<float>(position % 7) * 0.1f;
            rows[own + 1][i] = x[(i + 5) % width];
        }
        row sum{};
        float weights = 0.0f;
        for (std::size_t at = first; at <= position; ++at) {
            const std::size_t place = memory::at(table[at / block_tokens], at);
            float score = 0.0f;
            for (std::size_t i = 0; i < width; ++i)
                score += x[i] * rows[place][i];
            const float weight = std::exp(score * 0.25f);
            weights += weight;
            for (std::size_t i = 0; i < width; ++i)
                sum[i] += weight * rows[place + 1][i];
        }
        for (std::size_t i = 0; i < width; ++i)
            x[i] += sum[i] / weights;
    }

    std::array<row, vocabulary> embedding_{};
};

/// All that the host needs to write to reuse what its model has computed.
class hybrid_cache {
public:
    using cache = kvcache::cache<kvcache::storage::external, kvcache::codec::external, kvcache::layers::grouped>;

    explicit hybrid_cache(std::size_t bytes)
        : kept_{std::vector<row>(bytes / sizeof(row)), std::vector<row>(bytes / sizeof(row)),
                std::vector<row>(bytes / sizeof(row))},
          cache_(kvcache::make_cache({.limit = {.bytes = bytes}, .merge_equal_pages = false}, host(),
                                     kvcache::codec::external{.page_bytes = block_tokens * 2 * sizeof(row)},
                                     groups())) {}

    struct answer {
        std::size_t reused = 0;
        row logits = {};
        std::string known = {}; ///< What the cache knew, in words.
    };

    /// Answers a prompt: continues after its longest known prefix, a block at a time, so that it holds few blocks of
    /// the window.
    kvcache::result<answer> ask(const tokens& prompt) {
        answer made{.known = cache_.lookup(prompt).explain()};
        auto sequence = cache_.open(prompt);
        std::size_t at = made.reused = sequence.size();
        row state{};
        if (at > 0)
            state = kept_.states[static_cast<std::size_t>(sequence.blocks(state_group)[at / block_tokens - 1])];
        while (at < prompt.size()) {
            const auto some = std::span(prompt).subspan(at).first(
                std::min<std::size_t>(block_tokens - at % block_tokens, prompt.size() - at));
            auto lease = cache_.reserve(sequence, some.size());
            if (!lease)
                return lease.error(); // out of memory
            const auto full = lease->blocks(full_group), windowed = lease->blocks(window_group);
            for (const kvcache::token_id token : some)
                made.logits = model_.run(token, at++, kept_, state, full, windowed);
            if (at % block_tokens == 0) // keep the state for later prompts; none if there is no room
                if (const auto block = lease->snapshot(state_group, at))
                    kept_.states[*block] = state;
            lease->commit(some);
        }
        return made;
    }

private:
    // A sequence is to write into a block that it shares with others.
    [[nodiscard]] bool copy(std::vector<row>& rows, std::uint32_t from, std::uint32_t to) {
        const auto begin = [&](std::uint32_t block) {
            return rows.begin() + static_cast<std::ptrdiff_t>(memory::at(static_cast<std::int32_t>(block), 0));
        };
        std::copy_n(begin(from), block_tokens * 2, begin(to));
        return true;
    }
    [[nodiscard]] kvcache::storage::external host() {
        return {.copy = [this](kvcache::page_id from, kvcache::page_id to) {
            return copy(kept_.full, index_of(from), index_of(to));
        }};
    }
    [[nodiscard]] kvcache::layers::grouped groups() {
        return {.layout = {block_tokens,
                           {{.layers = 1, .kv_heads = 1, .head_dim = width},
                            {.layers = 1, .kv_heads = 1, .head_dim = width, .window = window},
                            {.layers = 1, .state_bytes = sizeof(row)}}},
                .copy = [this](std::size_t, std::uint32_t from, std::uint32_t to, std::size_t) {
                    return copy(kept_.windowed, from, to);
                }};
    }

    hybrid_model model_;
    memory kept_;
    cache cache_;
};

/// The first `kept` tokens of a prompt, then `more` others.
tokens edited(tokens prompt, std::size_t kept, std::size_t more, std::uint32_t seed) {
    prompt.resize(kept);
    std::mt19937 dice(seed);
    for (std::size_t i = 0; i < more; ++i)
        prompt.push_back(kvcache::token_id(dice() % vocabulary));
    return prompt;
}

int program() {
    constexpr std::size_t bytes = 64 << 10;
    hybrid_cache cache(bytes);
    bool right = true;
    const auto ask = [&](const char* what, const tokens& prompt) {
        const auto got = cache.ask(prompt), alone = hybrid_cache(bytes).ask(prompt);
        const bool same = got && alone && got->logits == alone->logits;
        right = right && same;
        std::cout << what << ": " << (got ? got->reused : 0) << " of " << prompt.size() << " tokens reused, "
                  << (same ? "the same bits as alone" : "OTHER BITS than alone") << " (" << (got ? got->known : "")
                  << ")\n";
        return got ? got->reused : 0;
    };
    const tokens prompt = edited({}, 0, 100, 1);
    ask("a prompt", prompt);
    right = right && ask("the same prompt", prompt) == 96;
    right = right && ask("a prompt with the same first 50 tokens", edited(prompt, 50, 30, 2)) == 48;
    right = right && ask("a longer one", edited(prompt, 100, 20, 3)) == 96;
    for (std::uint32_t other = 10; other < 14; ++other)
        ask("another prompt", edited({}, 0, 90, other));
    ask("the first prompt again", prompt);
    return right ? 0 : 1;
}

} // namespace

int main() {
    return support::guarded("12_hybrid_engine", [&] { return program(); });
}
