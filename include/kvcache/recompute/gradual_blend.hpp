// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/blend.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Selects as `blend` does, but more tokens than `fraction`, then filters them: each of the next layers keeps the
/// tokens that deviate most there (CacheBlend's gradual filtering, Yao et al. 2025). The remaining tokens are
/// recomputed in all layers.
struct gradual_blend {
    using role = recompute_role;
    double fraction = 0.15;  ///< Fraction of the reused tokens kept by the last filter.
    double wider = 2.0;      ///< Size of the first selection, as a multiple of `fraction`.
    std::size_t filters = 2; ///< Number of filtering layers; capped at the layers after `layer`.
    deviation_metric compares = deviation_metric::keys; ///< The vectors whose deviation is measured.
    std::size_t layer = 1; ///< The layer of the first selection; all tokens go through the layers before it.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class gradual_blend::state : public exact_prefix::state {
public:
    state(const gradual_blend& options, std::size_t layers) : options_(options) {
        const std::size_t behind = layers > options.layer + 1 ? layers - options.layer - 1 : 0;
        options_.filters = std::min(options.filters, behind);
    }

    [[nodiscard]] deviation_metric compared() const noexcept { return options_.compares; }
    [[nodiscard]] std::size_t check_layer() const noexcept { return options_.layer; }
    [[nodiscard]] std::size_t filters() const noexcept { return options_.filters; }

    void select(std::span<const reused_span> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        blend{.fraction = fraction_after(0)}.open({}).select(runs, deviations, positions);
    }

    /// Applies filter `number`: keeps those of `positions` that deviate most in the next layer.
    void filter(std::size_t number, std::span<const reused_span> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        std::size_t total = 0;
        for (const reused_span& run : runs)
            total += run.count;
        std::vector<std::size_t> kept;
        for (const std::size_t i : top_k_deviations(deviations, share_of(fraction_after(number + 1), total)))
            kept.push_back(positions[i]);
        positions = std::move(kept);
    }

private:
    // The fraction shrinks geometrically from fraction * wider to fraction.
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

}}} // namespace kvcache::recompute
