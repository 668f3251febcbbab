// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Runs every token again that is not exact: the same bits as with no chunk reused, and as slow. For comparisons.
struct everything {
    using role = recompute_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class everything::state : public exact_prefix::state {
public:
    void select(std::span<const reused_run> runs, std::vector<std::size_t>& positions) const {
        for (const reused_run& run : runs)
            for (std::size_t i = 0; i < run.count; ++i)
                positions.push_back(run.first + i);
    }
};

inline everything::state everything::open(page_shape) const {
    return {};
}

static_assert(recompute_policy<everything> && chunk_recompute_state<everything::state>);

} // namespace kvcache
