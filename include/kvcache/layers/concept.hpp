// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What a layers policy is opened for.
struct layers_capacity {
    std::size_t pages = 0;                         ///< Pages of the cache.
    std::size_t bytes = 0;                         ///< Of pages and blocks together, at most.
    std::span<const std::size_t> block_bytes = {}; ///< Bytes of a block, by group of the layout.
};

/// The working state of a layers policy: layers::uniform::state, which keeps nothing, or that of
/// layers::grouped.
template <class S>
concept layers_state = requires {
    { S::several } -> std::convertible_to<bool>;
};

/// A policy that says which layers of a model keep what: all the same, or groups of them.
template <class P>
concept layers_policy = plays<P, layers_role> && requires(const P p, const layers_capacity& capacity) {
    p.open(capacity);
} && layers_state<opened_by<P, layers_capacity>>;

}} // namespace kvcache
