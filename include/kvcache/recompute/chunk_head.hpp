// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Recomputes the first tokens of every reused span. Computed without a prefix they became attention sinks, which they
/// are not after other tokens (EPIC's LegoLink, Hu et al. 2025). Recomputation continues to the end of a page, so that
/// the following pages stay whole and shared (MEPIC).
struct chunk_head {
    using role = recompute_role;
    std::size_t rows = 32;    ///< Minimum number of tokens of each span.
    bool page_aligned = true; ///< Continues to the end of the last token's page.

    class state : public exact_prefix::state {
    public:
        state(std::size_t rows, std::size_t page) : rows_(rows), page_(page) {}

        void select(std::span<const reused_span> runs, std::vector<std::size_t>& positions) const {
            for (const reused_span& run : runs) {
                const std::size_t behind = (run.row + rows_ + page_ - 1) / page_ * page_; // first page kept
                const std::size_t count = rows_ == 0 ? 0 : std::min(run.count, behind - run.row);
                for (std::size_t i = 0; i < count; ++i)
                    positions.push_back(run.first + i);
            }
        }

    private:
        std::size_t rows_;
        std::size_t page_; // granularity to which rows are rounded up
    };

    [[nodiscard]] state open(page_shape shape) const { return {rows, page_aligned ? shape.tokens : 1}; }
};

static_assert(recompute_policy<chunk_head> && chunk_recompute_state<chunk_head::state>);

}}} // namespace kvcache::recompute
