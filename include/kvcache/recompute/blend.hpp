// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/recompute/furthest_off.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Runs those tokens again whose keys or values are furthest off in the second layer (CacheBlend, Yao et al. 2025): the
/// first layer's depend on nothing but the token and its place, so all tokens go through that one, and its output says
/// what the second's should be. Of equal tokens the earlier runs.
struct blend {
    using role = recompute_role;
    double fraction = 0.15;                     ///< Of the reused tokens.
    deviation_of compares = deviation_of::keys; ///< What says how far off a token is.
    std::size_t layer = 1;                      ///< Whose: all tokens go through those before it.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class blend::state : public exact_prefix::state {
public:
    explicit state(const blend& options) : options_(options) {}

    [[nodiscard]] deviation_of compared() const noexcept { return options_.compares; }
    [[nodiscard]] std::size_t check_layer() const noexcept { return options_.layer; }

    void select(std::span<const reused_run> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        const auto order = furthest_off(deviations, share_of(options_.fraction, deviations.size()));
        auto next = order.begin();
        std::size_t before = 0; // tokens of the runs before
        for (const reused_run& run : runs) {
            for (; next != order.end() && *next < before + run.count; ++next)
                positions.push_back(run.first + *next - before);
            before += run.count;
        }
    }

private:
    blend options_;
};

inline blend::state blend::open(page_shape) const {
    return state(*this);
}

static_assert(recompute_policy<blend> && deviation_recompute_state<blend::state>);

} // namespace kvcache
