// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace small {

using tokens = std::vector<kvcache::token_id>;

/// A prompt of several parts.
inline tokens joined(std::initializer_list<tokens> parts) {
    tokens all;
    for (const tokens& part : parts)
        all.insert(all.end(), part.begin(), part.end());
    return all;
}

/// A user-defined policy: every other token of a run, from token `First` on.
template <std::size_t First>
struct every_other {
    using role = kvcache::recompute_role;
    struct state {
        [[nodiscard]] std::size_t first_computed(std::size_t hit, std::size_t total) const {
            return total == 0 ? 0 : std::min(hit, total - 1);
        }
        void select(std::span<const kvcache::reused_span> runs, std::vector<std::size_t>& positions) const {
            for (const kvcache::reused_span& run : runs)
                for (std::size_t i = First; i < run.count; i += 2)
                    positions.push_back(run.first + i);
        }
    };
    [[nodiscard]] state open(kvcache::page_shape) const { return {}; }
};

} // namespace small
