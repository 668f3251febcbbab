// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

/// A run of tokens and the pages that hold their keys and values, shared with other sequences where they agree.
/// Destroying it releases its pages, tail first; what the index knows stays until room is needed.
/// Requires: the cache outlives it.
template <class Cache>
class basic_sequence {
public:
    basic_sequence(basic_sequence&& other) noexcept = default;
    /// Releases the pages it held before.
    basic_sequence& operator=(basic_sequence&& other) noexcept {
        basic_sequence taken(std::move(other));
        std::swap(cache_, taken.cache_);
        std::swap(state_, taken.state_);
        return *this;
    }
    ~basic_sequence() {
        if (state_)
            cache_->release(*state_);
    }

    /// How many tokens have their keys and values in place.
    [[nodiscard]] std::size_t size() const noexcept { return state_->tokens.size(); }
    [[nodiscard]] std::span<const token_id> tokens() const noexcept { return state_->tokens; }
    /// How many leading tokens are exact: the same bits as with nothing reused. Those behind came from another past, or
    /// attended to such; nobody else is ever given them.
    [[nodiscard]] std::size_t exact() const noexcept { return std::min(state_->exact, size()); }
    [[nodiscard]] std::span<const page_entry> table() const noexcept { return state_->table; }

    /// A sequence of its own that shares the first `tokens` tokens; a page cut in the middle is copied by whoever
    /// writes to it first. Where the codec codes whole pages, a fork inside a coded one ends at that page's begin: its
    /// size() says where to go on. Requires: tokens <= size(), no lease under way. Cost: O(pages).
    [[nodiscard]] basic_sequence fork(std::size_t tokens) const { return cache_->fork(*state_, tokens); }

    /// Keeps the first `tokens` tokens, or fewer, as a fork does. Requires: tokens <= size(), no lease under way.
    void truncate(std::size_t tokens) { cache_->truncate(*state_, tokens); }

    /// Lets no page behind the first `tokens` tokens become known to other sequences; forks inherit it. What is known
    /// already stays so.
    void share_at_most(std::size_t tokens) noexcept { state_->cacheable = tokens; }
    /// How many leading tokens others may be given, at most.
    [[nodiscard]] std::size_t shared_at_most() const noexcept { return std::min(state_->exact, state_->cacheable); }

    /// A sequence of its own without `count` tokens from `first` on. Those behind move down, their keys and values as
    /// they were, in pages of their own: from `first` on it is approximate (StreamingLLM, Xiao et al. 2024). Only where
    /// the codec keeps row by row. Errors: out_of_memory. Requires: first + count <= size(), no lease under way.
    /// Cost: O(bytes of the tokens behind).
    [[nodiscard]] result<basic_sequence> without(std::size_t first,
                                                 std::size_t count) const requires Cache::writes_rows {
        return cache_->without(*state_, first, count);
    }

private:
    friend Cache;
    template <class>
    friend class basic_lease;
    basic_sequence(Cache& cache, std::unique_ptr<sequence_state> state) : cache_(&cache), state_(std::move(state)) {}

    Cache* cache_;
    std::unique_ptr<sequence_state> state_;
};

} // namespace kvcache
