// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/cache/stats.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/tier/none.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tier operations of a cache: cache/tier_client.hpp, which <kvcache/tier.hpp> includes.
template <tier_state Tier>
class tier_client;

/// The client of a cache without a tier: it makes no records.
template <>
class tier_client<tier::none::state> {
public:
    tier_client(tier::none::state, const identity&, const std::string&) {}

    [[nodiscard]] tier::none::state& tier() noexcept { return none_; }
    [[nodiscard]] const tier::none::state& tier() const noexcept { return none_; }

    void set(std::size_t, const identity&) {}
    [[nodiscard]] tier_stats stats() const { return {}; }

    template <class Core>
    std::size_t prefetch(Core&, std::uint32_t, std::span<const token_id>) {
        return 0;
    }
    template <class Core>
    void store(const Core&, sequence_state&) noexcept {}

private:
    tier::none::state none_;
};

}} // namespace kvcache
