// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/row_run.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/sequence_pages.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A run of tokens and the pages that hold their keys and values, shared with other sequences that have the same
/// prefix. Destruction releases its pages, tail first; indexed pages stay cached until space is needed.
/// With locking::mutex several threads may call its const members at once, fork included, while no thread changes it or
/// commits its lease. Requires: the cache outlives it; where it does not, the sequence can only be destroyed or
/// assigned to.
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
        if (state_ && !state_->orphaned)
            cache_access::release(*cache_, std::move(state_));
    }

    /// The number of tokens whose keys and values are cached.
    [[nodiscard]] std::size_t size() const { return state().tokens.size(); }
    [[nodiscard]] std::span<const token_id> tokens() const { return state().tokens; }
    /// The number of leading tokens that are exact: bit-identical to computing every token. Later tokens were computed
    /// after a different prefix, or attended to such tokens; they are never shared with other sequences.
    [[nodiscard]] std::size_t exact() const { return std::min(state().exact, size()); }
    [[nodiscard]] std::span<const page_entry> table() const { return state().table; }

    /// The sequence's pages, reserved rows included, in the form that attention reads. Only if the codec writes row by
    /// row: a codec of whole pages keeps full-precision rows that its lease shows. Valid until the table changes.
    [[nodiscard]] sequence_pages pages() const requires Cache::writes_rows {
        return {state().table, {}, state().exact != sequence_state::all};
    }

    /// Calls `f` with a row_run for each run of consecutive rows in one page, in order of position: the rows of the
    /// tokens, not reserved ones. The pointers are valid until the sequence changes or a lease of it is committed. Only
    /// with a row-major codec (codec/row_major.hpp). Cost: O(pages), besides `f`.
    template <class F>
    void for_each_run(layer_id layer, head_id head, F&& f) const {
        rows().for_each_run(layer, head, f);
    }
    /// Copies the keys and values of the tokens, widened to float32. keys, values: (size(), head_dim).
    /// Only with a codec that writes single rows. Throws: bad_alloc, unless the codec is row-major. Cost: O(numbers).
    void gather(layer_id layer, head_id head, std::span<float> keys, std::span<float> values) const {
        rows().gather(layer, head, keys, values);
    }

    /// Returns a sequence that shares the first `tokens` tokens. The first write to a partly used shared page copies
    /// it. With a codec that quantizes whole pages, a fork inside a quantized page ends where that page begins:
    /// continue at its size(). Requires: tokens <= size(), no open lease. Cost: O(pages).
    [[nodiscard]] basic_sequence fork(std::size_t tokens) const { return cache_access::fork(*cache_, state(), tokens); }

    /// Keeps the first `tokens` tokens, or fewer, as a fork does. Requires: tokens <= size(), no lease under way.
    void truncate(std::size_t tokens) { cache_access::truncate(*cache_, state(), tokens); }

    /// Prevents pages after the first `tokens` tokens from being published to other sequences; forks inherit the limit.
    /// Pages that are already published stay so.
    void set_cacheable_limit(std::size_t tokens) { cache_access::set_cacheable_limit(*cache_, state(), tokens); }
    /// The maximum number of leading tokens that can be shared.
    [[nodiscard]] std::size_t cacheable_limit() const { return std::min(state().exact, state().cacheable); }

    /// Returns a new sequence without the `count` tokens from `first` on. Later tokens move down with unchanged keys
    /// and values, in pages of their own: from `first` on the sequence is approximate (StreamingLLM, Xiao et al. 2024).
    /// Only if the codec writes row by row. Errors: out_of_memory. Requires: first + count <= size(), no open lease.
    /// Cost: O(bytes of the later tokens).
    [[nodiscard]] result<basic_sequence> erase_range(std::size_t first,
                                                     std::size_t count) const requires Cache::writes_rows {
        return cache_access::erase_range(*cache_, state(), first, count);
    }

private:
    friend Cache;
    friend class cache_access;
    friend class prompt_access;
    template <class>
    friend class basic_lease;
    basic_sequence(Cache& cache, std::unique_ptr<sequence_state> state) : cache_(&cache), state_(std::move(state)) {}

    [[nodiscard]] sequence_state& state() const {
        require(state_ != nullptr, "a sequence that was moved from is only destroyed or assigned to");
        require(!state_->orphaned, "a cache outlives its sequences");
        return *state_;
    }
    /// The state, for the cache that it is passed to.
    [[nodiscard]] sequence_state& state_for(const Cache& cache) const {
        require(state_ == nullptr || state_->orphaned || cache_ == &cache, "a sequence is used with its own cache");
        return state();
    }
    [[nodiscard]] detail::table_rows<Cache> rows() const { return {*cache_, state().table, size()}; }

    Cache* cache_;
    std::unique_ptr<sequence_state> state_;
};

}} // namespace kvcache
