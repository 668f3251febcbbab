// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

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
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return deviations[a] > deviations[b]; });
    order.resize(std::min(order.size(), most));
    std::ranges::sort(order);
    return order;
}

/// The number of tokens in a fraction of `total`, at least one unless the fraction is zero.
[[nodiscard]] inline std::size_t share_of(double fraction, std::size_t total) {
    const auto most = static_cast<std::size_t>(fraction * static_cast<double>(total));
    return std::min(total, std::max<std::size_t>(most, fraction > 0.0 ? 1 : 0));
}

}}} // namespace kvcache::recompute
