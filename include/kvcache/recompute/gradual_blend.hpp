// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/blend.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/recompute/furthest_off.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Chooses as `blend` does, but more than it wants, and lets these run on: in every layer that follows those stay that
/// are furthest off there (CacheBlend's gradual filtering, Yao et al. 2025). What is left runs again in all layers.
struct gradual_blend {
    using role = recompute_role;
    double fraction = 0.15;                     ///< Of the reused tokens, in the end.
    double wider = 2.0;                         ///< How many times as many are chosen first.
    std::size_t filters = 2;                    ///< Layers that filter; fewer if the model has not as many.
    deviation_of compares = deviation_of::keys; ///< What says how far off a token is.
    std::size_t layer = 1;                      ///< Whose first: all tokens go through those before it.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class gradual_blend::state : public exact_prefix::state {
public:
    state(const gradual_blend& options, std::size_t layers) : options_(options) {
        const std::size_t behind = layers > options.layer + 1 ? layers - options.layer - 1 : 0;
        options_.filters = std::min(options.filters, behind);
    }

    [[nodiscard]] deviation_of compared() const noexcept { return options_.compares; }
    [[nodiscard]] std::size_t check_layer() const noexcept { return options_.layer; }
    [[nodiscard]] std::size_t filters() const noexcept { return options_.filters; }

    void select(std::span<const reused_run> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        blend{.fraction = fraction_after(0)}.open({}).select(runs, deviations, positions);
    }

    /// Filter `number` of them: keeps of `positions` those that are furthest off in the next layer.
    void filter(std::size_t number, std::span<const reused_run> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        std::size_t total = 0;
        for (const reused_run& run : runs)
            total += run.count;
        std::vector<std::size_t> kept;
        for (const std::size_t i : furthest_off(deviations, share_of(fraction_after(number + 1), total)))
            kept.push_back(positions[i]);
        positions = std::move(kept);
    }

private:
    // Even steps down, as ratios.
    [[nodiscard]] double fraction_after(std::size_t done) const {
        const double left = options_.filters == 0
                                ? 0.0
                                : static_cast<double>(options_.filters - done) / static_cast<double>(options_.filters);
        return options_.fraction * std::pow(options_.wider, left);
    }

    gradual_blend options_;
};

inline gradual_blend::state gradual_blend::open(page_shape shape) const {
    return {*this, shape.layers};
}

static_assert(recompute_policy<gradual_blend> && filtering_recompute_state<gradual_blend::state>);

} // namespace kvcache
