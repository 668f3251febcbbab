// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Reuses every chunk unchanged: its keys are rotated to their new positions, but they never attended to what now
/// precedes them. Approximate; the cheapest policy and the least accurate.
struct none {
    using role = recompute_role;

    class state : public exact_prefix::state {
    public:
        void select(std::span<const reused_span>, std::vector<std::size_t>&) const {}
    };

    [[nodiscard]] state open(page_shape) const { return {}; }
};

static_assert(recompute_policy<none> && chunk_recompute_state<none::state>);

}}} // namespace kvcache::recompute
