// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Reuses every chunk as it is: its keys are moved to their place, and it has never seen what comes before it now.
/// Approximate, the cheapest and the worst.
struct none {
    using role = recompute_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class none::state : public exact_prefix::state {
public:
    void select(std::span<const reused_run>, std::vector<std::size_t>&) const {}
};

inline none::state none::open(page_shape) const {
    return {};
}

static_assert(recompute_policy<none> && chunk_recompute_state<none::state>);

} // namespace kvcache
