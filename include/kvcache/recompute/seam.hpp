// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Runs the last tokens of every reused run again, those before the seam to what follows (KVBoost's selective
/// recompute). It mends the wrong side: see `head`.
struct seam {
    using role = recompute_role;
    std::size_t rows = 16; ///< Before each seam.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class seam::state : public exact_prefix::state {
public:
    explicit state(std::size_t rows) : rows_(rows) {}

    void select(std::span<const reused_run> runs, std::vector<std::size_t>& positions) const {
        for (const reused_run& run : runs)
            for (std::size_t left = std::min(rows_, run.count); left > 0; --left)
                positions.push_back(run.first + run.count - left);
    }

private:
    std::size_t rows_;
};

inline seam::state seam::open(page_shape) const {
    return state(rows);
}

static_assert(recompute_policy<seam> && chunk_recompute_state<seam::state>);

} // namespace kvcache
