// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tokens of a prompt to compute: [first, first + count). Tokens before `first` are reused.
struct compute_range {
    std::size_t first = 0;
    std::size_t count = 0;
};

/// Tokens of a prompt whose cached keys and values were computed after a different prefix.
struct reused_span {
    std::size_t first = 0; ///< Position in the prompt.
    std::size_t count = 0;
    std::uint32_t row = 0; ///< Row of the first token in its page.

    friend bool operator==(const reused_span&, const reused_span&) = default;
};

/// The working state of a recompute policy. `first_computed(hit, total)` returns the first token to compute, of `total`
/// tokens whose first `hit` are cached.
template <class S>
concept recompute_state = requires(const S s, std::size_t tokens) {
    { s.first_computed(tokens, tokens) } -> std::same_as<std::size_t>; // hit, total
};

/// A state that also reuses chunks cached after other prefixes. `select` appends the positions to recompute, ascending,
/// to `positions`.
template <class S>
concept chunk_recompute_state = recompute_state<S> &&
    requires(const S s, std::span<const reused_span> runs, std::vector<std::size_t>& positions) {
    s.select(runs, positions);
};

/// The vectors compared to measure a reused token's deviation.
enum class deviation_metric { keys, values };

/// A state that selects by deviation: the squared distance between the correct and the cached keys or values of a token
/// in one early layer. `deviations` holds one value per reused token, span by span. All tokens go through the layers
/// before that one.
template <class S>
concept deviation_recompute_state = recompute_state<S> &&
    requires(const S s, std::span<const reused_span> runs, std::span<const float> deviations,
             std::vector<std::size_t>& positions) {
    s.select(runs, deviations, positions);
    { s.compared() } -> std::same_as<deviation_metric>;
    { s.check_layer() } -> std::convertible_to<std::size_t>;
};

/// A state that filters its selection in the layers after the check layer, one layer per filter. `filter` receives the
/// deviation of each of `positions` in that layer, once the selected tokens have been computed up to it, and keeps
/// some.
template <class S>
concept filtering_recompute_state = deviation_recompute_state<S> &&
    requires(const S s, std::size_t number, std::span<const reused_span> runs, std::span<const float> deviations,
             std::vector<std::size_t>& positions) {
    { s.filters() } -> std::convertible_to<std::size_t>;
    s.filter(number, runs, deviations, positions);
};

/// A policy that selects the reused tokens to recompute.
template <class P>
concept recompute_policy = plays<P, recompute_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && recompute_state<opened_by<P, page_shape>>;

}} // namespace kvcache
