// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <cstddef>

namespace kvcache::inline KVCACHE_ABI {

/// Reuses a known text only where the prompt goes on behind its end: one edited token, and everything runs (DarkHal's
/// chat sessions). Exact, and never better than `exact_prefix`: for comparisons.
struct all_or_nothing {
    using role = recompute_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class all_or_nothing::state : public exact_prefix::state {
public:
    using exact_prefix::state::first_rerun;
    [[nodiscard]] std::size_t first_rerun(std::size_t hit, std::size_t total, bool differs) const noexcept {
        return differs ? 0 : first_rerun(hit, total);
    }
};

inline all_or_nothing::state all_or_nothing::open(page_shape) const {
    return {};
}

static_assert(recompute_policy<all_or_nothing> && edit_recompute_state<all_or_nothing::state>);

} // namespace kvcache
