// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Recomputes every inexact token: bit-identical to reusing no chunk, and as slow. For comparisons.
struct full {
    using role = recompute_role;

    class state : public exact_prefix::state {
    public:
        void select(std::span<const reused_span> runs, std::vector<std::size_t>& positions) const {
            for (const reused_span& run : runs)
                for (std::size_t i = 0; i < run.count; ++i)
                    positions.push_back(run.first + i);
        }
    };

    [[nodiscard]] state open(page_shape) const { return {}; }
};

static_assert(recompute_policy<full> && chunk_recompute_state<full::state>);

}}} // namespace kvcache::recompute
