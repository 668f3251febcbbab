// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/cache/tier_stats.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/tier/no_tier.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache::inline KVCACHE_ABI {

/// What a cache does with its tier: cache/tier_books.hpp, which <kvcache/tier.hpp> includes.
template <tier_state Tier>
class tier_books;

/// A cache without a tier looks prompts up in memory alone, and makes no records.
template <>
class tier_books<no_tier::state> {
public:
    tier_books(no_tier::state, const identity&, const std::string&) {}

    [[nodiscard]] no_tier::state& tier() noexcept { return none_; }
    [[nodiscard]] const no_tier::state& tier() const noexcept { return none_; }

    void set(std::size_t, const identity&) {}
    [[nodiscard]] tier_stats stats() const { return {}; }

    template <class Cache>
    [[nodiscard]] auto match(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return cache.look_up(tenant, tokens, true, 0);
    }
    template <class Cache>
    [[nodiscard]] bool may_know(Cache&, std::uint32_t, std::span<const token_id>) {
        return false;
    }
    template <class Cache>
    std::size_t prefetch(Cache&, std::uint32_t, std::span<const token_id>) {
        return 0;
    }
    template <class Cache>
    void store(const Cache&, sequence_state&) noexcept {}

private:
    no_tier::state none_;
};

} // namespace kvcache
