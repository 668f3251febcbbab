// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Recomputes the last tokens of every reused span, those before the boundary to the next span (KVBoost's selective
/// recompute). Which side of a boundary matters depends on the model: `chunk_head` is the other.
struct chunk_boundary {
    using role = recompute_role;
    std::size_t rows = 16; ///< Tokens before each boundary.

    class state : public exact_prefix::state {
    public:
        explicit state(std::size_t rows) : rows_(rows) {}

        void select(std::span<const reused_span> runs, std::vector<std::size_t>& positions) const {
            for (const reused_span& run : runs)
                for (std::size_t left = std::min(rows_, run.count); left > 0; --left)
                    positions.push_back(run.first + run.count - left);
        }

    private:
        std::size_t rows_;
    };

    [[nodiscard]] state open(page_shape) const { return state(rows); }
};

static_assert(recompute_policy<chunk_boundary> && chunk_recompute_state<chunk_boundary::state>);

}}} // namespace kvcache::recompute
