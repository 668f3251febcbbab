// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>

#include <algorithm>

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Reuses the longest cached prefix and computes the rest. A full hit is shortened by one token, so that logits are
/// always computed. Exact: the result is bit-identical to computing every token.
struct exact_prefix {
    using role = recompute_role;

    class state {
    public:
        [[nodiscard]] std::size_t first_computed(std::size_t hit, std::size_t total) const noexcept {
            return total == 0 ? 0 : std::min(hit, total - 1);
        }
    };

    [[nodiscard]] state open(page_shape) const { return {}; }
};

static_assert(recompute_policy<exact_prefix>);

}}} // namespace kvcache::recompute
