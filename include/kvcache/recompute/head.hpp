// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Runs the first tokens of every reused run again: read alone a run makes them a sink of attention, which they are not
/// behind others (EPIC's LegoLink, Hu et al. 2025). Up to the end of a page, so that the pages behind stay whole and
/// shared (MEPIC).
struct head {
    using role = recompute_role;
    std::size_t rows = 32;    ///< Of each run, at least.
    bool page_aligned = true; ///< Go on to the end of the last one's page.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class head::state : public exact_prefix::state {
public:
    state(std::size_t rows, std::size_t page) : rows_(rows), page_(page) {}

    void select(std::span<const reused_run> runs, std::vector<std::size_t>& positions) const {
        for (const reused_run& run : runs) {
            const std::size_t behind = (run.row + rows_ + page_ - 1) / page_ * page_; // row of the first page
            const std::size_t count = rows_ == 0 ? 0 : std::min(run.count, behind - run.row);
            for (std::size_t i = 0; i < count; ++i)
                positions.push_back(run.first + i);
        }
    }

private:
    std::size_t rows_;
    std::size_t page_; // rows are rounded up to so many
};

inline head::state head::open(page_shape shape) const {
    return {rows, page_aligned ? shape.tokens : 1};
}

static_assert(recompute_policy<head> && chunk_recompute_state<head::state>);

} // namespace kvcache
