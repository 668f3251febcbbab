// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Which of a prompt's tokens run: [first, first + count); those before are reused.
struct rerun {
    std::size_t first = 0;
    std::size_t count = 0;
};

/// Tokens of a prompt whose keys and values were computed behind another past.
struct reused_run {
    std::size_t first = 0; ///< In the prompt.
    std::size_t count = 0;
    std::uint32_t row = 0; ///< The row of its page that the first one lies in.

    friend bool operator==(const reused_run&, const reused_run&) = default;
};

/// The working state of a recompute policy: of `total` tokens whose first `hit` are cached, the first that runs again.
template <class S>
concept recompute_state = requires(const S s, std::size_t tokens) {
    { s.first_rerun(tokens, tokens) } -> std::same_as<std::size_t>; // hit, total
};

/// One that also reuses chunks behind other pasts: it adds the positions that run again, ascending, to `positions`.
template <class S>
concept chunk_recompute_state = recompute_state<S> &&
    requires(const S s, std::span<const reused_run> runs, std::vector<std::size_t>& positions) {
    s.select(runs, positions);
};

/// What is compared to see how far a reused token is off.
enum class deviation_of { keys, values };

/// One that chooses by how far tokens are off: it is told the squared distance between what a token's keys or values in
/// one early layer are and what they were, run by run. All tokens go through the layers before that one.
template <class S>
concept deviation_recompute_state = recompute_state<S> &&
    requires(const S s, std::span<const reused_run> runs, std::span<const float> deviations,
             std::vector<std::size_t>& positions) {
    s.select(runs, deviations, positions);
    { s.compared() } -> std::same_as<deviation_of>;
    { s.check_layer() } -> std::convertible_to<std::size_t>;
};

/// One that judges those it chose again, in as many layers behind the first as it has filters: it is told how far each
/// of `positions` is off there once the chosen have run up to it, and keeps some.
template <class S>
concept filtering_recompute_state = deviation_recompute_state<S> &&
    requires(const S s, std::size_t number, std::span<const reused_run> runs, std::span<const float> deviations,
             std::vector<std::size_t>& positions) {
    { s.filters() } -> std::convertible_to<std::size_t>;
    s.filter(number, runs, deviations, positions);
};

/// Which reused tokens run again.
template <class P>
concept recompute_policy = plays<P, recompute_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && recompute_state<opened_by<P, page_shape>>;

} // namespace kvcache
