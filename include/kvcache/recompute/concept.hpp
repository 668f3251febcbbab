// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>

#include <concepts>
#include <cstddef>

namespace kvcache {

/// Which of a prompt's tokens run: [first, first + count); those before are reused.
struct rerun {
    std::size_t first = 0;
    std::size_t count = 0;
};

/// The working state of a recompute policy: of `total` tokens whose first `hit` are cached, the first that runs again.
template <class S>
concept recompute_state = requires(const S s, std::size_t tokens) {
    { s.first_rerun(tokens, tokens) } -> std::same_as<std::size_t>; // hit, total
};

/// Which reused tokens run again.
template <class P>
concept recompute_policy = plays<P, recompute_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && recompute_state<opened_by<P, page_shape>>;

} // namespace kvcache
