// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/tier/concept.hpp>

#include <cstddef>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// What `read_run` calls with the place of a record in its run and with its bytes; false: no more. It stands for any
/// callable of this form.
struct tier_run_use {
    bool operator()(std::size_t index, std::span<const std::byte> bytes) const;
};

/// A tier that is asked for a run of records at once, because every question takes a while. `leading` says how many
/// leading records are there. `read_run` reads them in turn, as long as they are there and more are wanted, and says
/// how many it gave; an error, if it gave none.
template <class S>
concept run_tier_state = tier_state<S> && requires(S s, std::span<const digest256> names, const tier_run_use& use) {
    { s.leading(names) } -> std::same_as<std::size_t>;
    { s.read_run(names, use) } -> std::same_as<result<std::size_t>>;
};

/// How many leading records a tier has.
template <tier_state Tier>
[[nodiscard]] std::size_t leading_in(Tier& tier, std::span<const digest256> names) {
    if constexpr (run_tier_state<Tier>) {
        return names.empty() ? 0 : tier.leading(names);
    } else {
        std::size_t there = 0;
        while (there < names.size() && tier.contains(names[there]))
            ++there;
        return there;
    }
}

/// Reads records in turn, as long as they are there and `use(index, bytes)` wants more. Returns how many it was given.
/// Errors: those of the tier, if it was given none.
template <tier_state Tier, class Use>
[[nodiscard]] result<std::size_t> read_run(Tier& tier, std::span<const digest256> names, Use&& use) {
    if constexpr (run_tier_state<Tier>) {
        if (names.empty())
            return std::size_t{0};
        return tier.read_run(names, use);
    } else {
        bool more = true;
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto found = tier.read(names[i], [&](std::span<const std::byte> bytes) { more = use(i, bytes); });
            if (!found && i == 0)
                return found.error();
            if (!found || !*found)
                return i;
            if (!more)
                return i + 1;
        }
        return names.size();
    }
}

} // namespace kvcache
