// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/paged_rows.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/contract.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

/// Rows reserved behind a sequence, to be written layer by layer and then committed. Destroyed without a commit, the
/// sequence is as it was before. Requires: the sequence outlives it; one lease a sequence.
template <class Cache>
class basic_lease {
public:
    basic_lease(basic_lease&& other) noexcept
        : cache_(other.cache_), state_(std::exchange(other.state_, nullptr)), first_(other.first_) {}
    /// Takes back what it had reserved before.
    basic_lease& operator=(basic_lease&& other) noexcept {
        basic_lease taken(std::move(other));
        std::swap(cache_, taken.cache_);
        std::swap(state_, taken.state_);
        std::swap(first_, taken.first_);
        return *this;
    }
    ~basic_lease() { rollback(); }

    /// The position of the first reserved row.
    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    /// How many rows are reserved; none once the lease has ended.
    [[nodiscard]] std::size_t rows() const noexcept { return state_ != nullptr ? state_->leased : 0; }

    /// Where a reserved row lies: a row of a page, and which entry of the table that is (of rows that are not woven).
    struct place {
        page_id page = {};
        std::uint32_t row = 0;
        std::size_t entry = 0;
    };
    [[nodiscard]] place place_of(std::size_t row) const {
        expects(row < rows(), "a row that has a place was reserved");
        if (!state_->woven.empty())
            return {state_->woven[row].page, state_->woven[row].row, 0};
        const std::size_t tokens = cache_->shape().tokens;
        const std::size_t tail = state_->pages_before - (state_->tail_before ? 1 : 0);
        const std::size_t used = state_->tail_before ? state_->tail_before->first + state_->tail_before->count : 0;
        const std::size_t entry = tail + (used + row) / tokens;
        return {state_->table[entry].page, static_cast<std::uint32_t>((used + row) % tokens), entry};
    }

    /// Writes the keys (rotated by the position, where the model rotates) and values of one row.
    /// keys, values: (kv_heads, head_dim). Rows of one lease may be written by several threads; where the codec codes
    /// whole pages each is written once a layer, in ascending order but for as many as run at once.
    void write(layer_id layer, std::size_t row, std::span<const float> keys, std::span<const float> values) const {
        const page_shape& shape = cache_->shape();
        expects(row < rows(), "a written row was reserved");
        expects(index_of(layer) < shape.layers, "a written layer is one of the page shape's");
        expects(keys.size() == std::size_t{shape.kv_heads} * shape.head_dim && values.size() == keys.size(),
                "a row of keys or values has head_dim numbers for each KV head");
        expects(!keeps(row), "a row that is kept from elsewhere is not written");
        const place to = place_of(row);
        const page_id page = to.page;
        const auto bytes = cache_->bytes(page);
        const std::uint32_t at = to.row;
        if constexpr (page_writer<typename Cache::codec_type>) {
            state_->exact_rows[to.entry]->write(cache_->codec(), bytes, layer, at, keys, values);
        } else {
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                cache_->codec().encode(bytes, {layer, head_id{head}, at},
                                       keys.subspan(std::size_t{head} * shape.head_dim, shape.head_dim),
                                       values.subspan(std::size_t{head} * shape.head_dim, shape.head_dim));
        }
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return cache_->shape(); }

    /// Whether a row is kept as it was computed elsewhere.
    [[nodiscard]] bool keeps(std::size_t row) const noexcept {
        return state_ != nullptr && row < state_->woven.size() && state_->woven[row].kept;
    }
    /// Where the rows of a woven lease lie; empty for another.
    [[nodiscard]] std::span<const woven_row> woven() const noexcept {
        return state_ != nullptr ? std::span<const woven_row>(state_->woven) : std::span<const woven_row>();
    }

    /// The sequence's pages, reserved rows included, as attention reads them.
    [[nodiscard]] auto pages() const {
        expects(state_ != nullptr, "a lease shows its pages until it ends");
        return paged_rows<typename Cache::codec_type, typename Cache::storage_type>{
            &cache_->codec(), &cache_->storage(), state_->table, state_->exact_rows,
            state_->exact != sequence_state::all};
    }

    /// How many pages the lease has taken, for rows that were computed elsewhere and are put in place page by page: all
    /// of their bytes, as the codec keeps them. Requires: the sequence ended where a page ends.
    [[nodiscard]] std::size_t taken_pages() const {
        expects(state_ != nullptr && !state_->tail_before && state_->woven.empty(), "whole pages are put in place");
        return state_->table.size() - state_->pages_before;
    }
    /// The bytes of one of them.
    [[nodiscard]] std::span<std::byte> page_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        return cache_->bytes(state_->table[state_->pages_before + page].page);
    }
    /// Where its exact rows go, as the plain codec keeps them; empty where none are kept once all rows are committed.
    [[nodiscard]] std::span<std::byte> exact_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        return cache_->exact_bytes(*state_, state_->pages_before + page);
    }

    /// As commit, of all rows, for rows that were put in place: of them nothing is learned about what computing costs.
    void commit_in_place(std::span<const token_id> tokens) {
        expects(tokens.size() == rows(), "all rows that are put in place are committed");
        cache_->commit_in_place(*state_, tokens);
        state_ = nullptr;
    }

    /// Publishes the first tokens.size() rows as these tokens, gives the others back, and ends the lease.
    /// It cannot fail: the lease has all memory that it must have.
    /// Requires: tokens.size() <= rows().
    void commit(std::span<const token_id> tokens) {
        expects(state_ != nullptr, "a lease is committed once");
        expects(tokens.size() <= rows(), "no more tokens are committed than rows were reserved");
        expects(state_->woven.empty() || tokens.size() == rows(), "a woven lease is committed whole");
        cache_->commit(*state_, tokens);
        state_ = nullptr;
    }

    /// Takes the reservation back: the sequence is as it was before. Nothing happens if the lease has ended.
    void rollback() noexcept {
        if (state_ != nullptr)
            cache_->rollback(*std::exchange(state_, nullptr));
    }

private:
    friend Cache;
    basic_lease(Cache& cache, sequence_state& state) : cache_(&cache), state_(&state), first_(state.tokens.size()) {}

    Cache* cache_;
    sequence_state* state_;
    std::size_t first_;
};

} // namespace kvcache
