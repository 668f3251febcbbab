// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bench {

/// A request of a recorded workload: a prompt as a chain of token blocks.
struct prefix_request {
    double seconds = 0.0;                   ///< Time of arrival, from the start of the trace.
    std::uint64_t input_tokens = 0;         ///< Tokens of the prompt; the last block may be partial, or not recorded.
    std::uint64_t output_tokens = 0;        ///< Tokens of the answer.
    std::uint32_t block_tokens = 0;         ///< Tokens of a full block.
    std::vector<std::uint64_t> blocks = {}; ///< Block names in order; each names the prompt up to its end.

    /// Returns the number of prompt tokens in its first `count` blocks.
    [[nodiscard]] std::uint64_t tokens_in(std::size_t count) const noexcept {
        return std::min<std::uint64_t>(std::uint64_t{count} * block_tokens, input_tokens);
    }
};

/// Returns the name of a block after all blocks before it. Equal names mean equal prefixes, even if the trace's own
/// block ids do not. The parent of the first block is the name space; blocks of different name spaces have different
/// names.
[[nodiscard]] constexpr std::uint64_t chained_block(std::uint64_t parent, std::uint64_t block) noexcept {
    // splitmix64 over both: distinct inputs collide as rarely as random 64-bit numbers.
    const auto mix = [](std::uint64_t x) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
    };
    return mix(parent + 0x9e3779b97f4a7c15ull * (mix(block + 0x9e3779b97f4a7c15ull) | 1));
}

/// Replaces the ids of a prompt's blocks by their names.
constexpr void chain_blocks(std::span<std::uint64_t> blocks, std::uint64_t name_space) noexcept {
    for (std::uint64_t& block : blocks)
        block = name_space = chained_block(name_space, block);
}

/// Returns the key of a text: FNV-1a.
[[nodiscard]] constexpr std::uint64_t text_key(std::string_view text) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    for (const char c : text)
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    return hash;
}

/// An access of a recorded workload to an independent object: a disk block, a file in a web cache.
struct object_access {
    double seconds = 0.0;    ///< Time of the access.
    std::uint64_t key = 0;   ///< Identifies the object.
    std::uint64_t bytes = 1; ///< Size of the object, at least 1.
};

/// The results of a replayed workload.
struct replay_counts {
    std::uint64_t requests = 0;   ///< Number of prompts; for objects, accesses.
    std::uint64_t accesses = 0;   ///< Blocks or objects requested.
    std::uint64_t hits = 0;       ///< Requested blocks or objects that were present; of a prompt, the longest prefix.
    std::uint64_t tokens = 0;     ///< Tokens of the prompts; for objects, bytes requested.
    std::uint64_t hit_tokens = 0; ///< Tokens (or bytes) in hits.
    double work = 0.0;            ///< Work of prefilling every prompt, in units of `prefill_work`; for objects, 0.
    double saved_work = 0.0;      ///< Work saved by hits.

    /// Adds an access to an object, which was present or not.
    void add(const object_access& access, bool hit) noexcept {
        ++requests;
        ++accesses;
        hits += hit;
        tokens += access.bytes;
        hit_tokens += hit ? access.bytes : 0;
    }

    [[nodiscard]] std::uint64_t misses() const noexcept { return accesses - hits; }

    /// Ratios from 0 to 1; 0 if nothing was requested.
    [[nodiscard]] double hit_ratio() const noexcept {
        return ratio(static_cast<double>(hits), static_cast<double>(accesses));
    }
    [[nodiscard]] double token_hit_ratio() const noexcept {
        return ratio(static_cast<double>(hit_tokens), static_cast<double>(tokens));
    }
    [[nodiscard]] double work_hit_ratio() const noexcept { return ratio(saved_work, work); }

    friend bool operator==(const replay_counts&, const replay_counts&) = default;

private:
    [[nodiscard]] static double ratio(double part, double whole) noexcept { return whole > 0.0 ? part / whole : 0.0; }
};

/// The work of a prefill, in units of the projections of one token. The projections of a token cost the same at every
/// position; its attention reads everything before it and adds position / crossover. A hit on a block whose parent is
/// present saves the work of its tokens: a constant part, and a part linear in its depth.
struct prefill_work {
    /// The position at which attention costs as much as the projections. With P weights and a query width d per
    /// layer, the projections take 2 P operations and attention 4 d per position, so it is P / (2 d). The default is
    /// Llama 3.1 8B: P = 218 M, d = 4096.
    double crossover = 26624.0;

    /// Returns the work of a prompt's first `tokens` tokens.
    [[nodiscard]] constexpr double up_to(std::uint64_t tokens) const noexcept {
        const auto n = static_cast<double>(tokens);
        return n + n * (n + 1.0) / (2.0 * crossover); // positions count from 1: a token attends to itself
    }

    /// Returns the work that a hit on block `depth` of the request saves, if the blocks before it are present.
    [[nodiscard]] double of_block(const prefix_request& request, std::size_t depth) const noexcept {
        return up_to(request.tokens_in(depth + 1)) - up_to(request.tokens_in(depth));
    }

    /// Adds a request whose first `hits` blocks were present.
    void count(replay_counts& counts, const prefix_request& request, std::size_t hits) const noexcept {
        ++counts.requests;
        counts.accesses += request.blocks.size();
        counts.hits += hits;
        counts.tokens += request.input_tokens;
        counts.hit_tokens += request.tokens_in(hits);
        counts.work += up_to(request.input_tokens);
        counts.saved_work += up_to(request.tokens_in(hits));
    }
};

/// The next use of each access of a workload, found in a first pass over the trace; the clairvoyant policies need it.
/// A time is the number of a request, from 0; all blocks of a prompt have the same time.
///
/// Memory: 4 bytes per access, and until forget_keys() about 48 bytes per distinct key.
class next_uses {
public:
    /// The time of a key that is not used again.
    static constexpr std::uint32_t never = 0xffffffffu;

    /// Adds the next access. Requires: times do not decrease, and are less than `never`.
    void add(std::uint64_t key, std::uint32_t time) {
        kvcache::expects(time < never, "a workload has fewer than 2^32 - 1 requests");
        const auto [at, fresh] = last_.try_emplace(key, times_.size());
        if (!fresh) {
            times_[at->second] = time;
            at->second = times_.size();
        }
        times_.push_back(never);
    }

    /// For each access, in order: the time of the next access to the same key.
    [[nodiscard]] std::span<const std::uint32_t> times() const noexcept { return times_; }

    /// Returns the number of distinct keys. Requires: forget_keys() has not been called.
    [[nodiscard]] std::size_t distinct() const noexcept { return last_.size(); }

    /// Frees the memory that only add() needs.
    void forget_keys() { last_ = {}; }

private:
    std::unordered_map<std::uint64_t, std::size_t> last_; // the last access to each key
    std::vector<std::uint32_t> times_;
};

} // namespace bench
