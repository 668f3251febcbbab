// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

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
        expects(time < never, "a workload has fewer than 2^32 - 1 requests");
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

}} // namespace kvcache
