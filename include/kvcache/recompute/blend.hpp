// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// The indices of the `most` largest deviations, ascending; ties go to the lower index. Cost: O(n log n).
[[nodiscard]] inline std::vector<std::size_t> top_k_deviations(std::span<const float> deviations, std::size_t most) {
    std::vector<std::size_t> order(deviations.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return deviations[a] > deviations[b]; });
    order.resize(std::min(order.size(), most));
    ranges::sort(order);
    return order;
}

/// The number of tokens in a fraction of `total`, at least one unless the fraction is zero.
[[nodiscard]] inline std::size_t share_of(double fraction, std::size_t total) {
    const auto most = static_cast<std::size_t>(fraction * static_cast<double>(total));
    return std::min(total, std::max<std::size_t>(most, fraction > 0.0 ? 1 : 0));
}

/// Recomputes the reused tokens whose keys or values deviate most in the second layer (CacheBlend, Yao et al. 2025).
/// Keys and values of the first layer depend only on a token and its position. All tokens therefore go through that
/// layer, and its output gives the correct keys and values of the second. Ties go to the earlier token.
struct blend {
    using role = recompute_role;
    double fraction = 0.15;                             ///< Fraction of the reused tokens to recompute.
    deviation_metric compares = deviation_metric::keys; ///< The vectors whose deviation is measured.
    std::size_t layer = 1; ///< The layer they belong to; all tokens go through the layers before it.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class blend::state : public exact_prefix::state {
public:
    explicit state(const blend& options) : options_(options) {}

    [[nodiscard]] deviation_metric compared() const noexcept { return options_.compares; }
    [[nodiscard]] std::size_t check_layer() const noexcept { return options_.layer; }

    void select(std::span<const reused_span> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        const auto order = top_k_deviations(deviations, share_of(options_.fraction, deviations.size()));
        auto next = order.begin();
        std::size_t before = 0; // tokens of the spans before this one
        for (const reused_span& run : runs) {
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

}}} // namespace kvcache::recompute
