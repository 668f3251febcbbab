// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/row_run.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/sequence_pages.hpp>
#include <kvcache/core/contract.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Rows reserved after the end of a sequence, to be written layer by layer and then committed. Destruction without a
/// commit rolls the sequence back. At most one lease a sequence; it ends when its sequence is destroyed. Several
/// threads may write different rows and call const members that read; one thread, after them, ends or moves it.
/// Requires: the cache outlives it.
template <class Cache>
class basic_lease {
    static constexpr bool whole_pages = page_writer<typename Cache::codec_type>;
    // Whether the cache owns the memory of the rows.
    static constexpr bool owns_rows = whole_pages || row_writer<typename Cache::codec_type>;

public:
    basic_lease(basic_lease&& other) noexcept
        : cache_(other.cache_),
          state_(std::exchange(other.state_, nullptr)),
          first_(other.first_),
          committed_(other.committed_) {
        hold();
    }
    /// Rolls back the lease that it held before.
    basic_lease& operator=(basic_lease&& other) noexcept {
        basic_lease taken(std::move(other));
        std::swap(cache_, taken.cache_);
        std::swap(state_, taken.state_);
        std::swap(first_, taken.first_);
        std::swap(committed_, taken.committed_);
        hold();
        taken.hold();
        return *this;
    }
    ~basic_lease() { rollback(); }

    /// The position of the first reserved row.
    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    /// The number of reserved rows; zero once the lease has ended.
    [[nodiscard]] std::size_t rows() const noexcept { return open() ? state_->lease.rows : 0; }

    /// The location of a reserved row: a row of a page, and the index of its page-table entry (if the lease is not
    /// spliced).
    struct place {
        page_id page = {};
        std::uint32_t row = 0;
        std::size_t entry = 0;
    };
    [[nodiscard]] place place_of(std::size_t row) const {
        require(row < rows(), "a row that has a place was reserved");
        if (!state_->lease.spliced.empty())
            return {state_->lease.spliced[row].page, state_->lease.spliced[row].row, 0};
        const std::size_t tokens = cache_->shape().tokens;
        const std::size_t tail = state_->lease.pages_before - (state_->lease.tail_before ? 1 : 0);
        const std::size_t used =
            state_->lease.tail_before ? state_->lease.tail_before->first + state_->lease.tail_before->count : 0;
        const std::size_t entry = tail + (used + row) / tokens;
        return {state_->table[entry].page, static_cast<std::uint32_t>((used + row) % tokens), entry};
    }

    /// Writes the keys (rotated by the position if the model uses RoPE) and values of one row.
    /// keys, values: (kv_heads, head_dim). Several threads may write rows of one lease. If the codec encodes whole
    /// pages, each row is written once per layer, in ascending order except among the rows that run at once.
    void write(layer_id layer, std::size_t row, std::span<const float> keys, std::span<const float> values) const {
        static_assert(owns_rows, "the host writes rows that are in its own memory: place_of says where");
        const page_shape& shape = cache_->shape();
        require(row < rows(), "a written row was reserved");
        require(index_of(layer) < shape.layers, "a written layer is one of the page shape's");
        require(keys.size() == std::size_t{shape.kv_heads} * shape.head_dim && values.size() == keys.size(),
                "a row of keys or values has head_dim numbers for each KV head");
        expects(!keeps(row), "a row that is kept from elsewhere is not written");
        if (state_->lease.spliced.empty())
            state_->lease.written.mark(index_of(layer), row);
        const place to = place_of(row);
        if constexpr (whole_pages)
            state_->lease.residual[to.entry]->write(cache_->codec(), cache_->bytes(to.page), layer, to.row, keys,
                                                    values);
        else if constexpr (owns_rows)
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                cache_->codec().encode(cache_->bytes(to.page), {layer, head_id{head}, to.row},
                                       keys.subspan(std::size_t{head} * shape.head_dim, shape.head_dim),
                                       values.subspan(std::size_t{head} * shape.head_dim, shape.head_dim));
    }

    /// Declares all rows written, by code that writes the pages itself. Not needed where the cache does not own their
    /// memory.
    void declare_written() const {
        require(open(), "a lease has rows until it ends");
        state_->lease.written.fill();
    }

    [[nodiscard]] const page_shape& shape() const { return cache().shape(); }

    /// Returns whether a row is kept as it was computed elsewhere.
    [[nodiscard]] bool keeps(std::size_t row) const noexcept {
        return open() && row < state_->lease.spliced.size() && state_->lease.spliced[row].kept;
    }
    /// The locations of the rows of a spliced lease; empty for other leases.
    [[nodiscard]] std::span<const spliced_row> spliced() const noexcept {
        return open() ? std::span<const spliced_row>(state_->lease.spliced) : std::span<const spliced_row>();
    }

    /// The sequence's pages, reserved rows included, in the form that attention reads.
    [[nodiscard]] sequence_pages pages() const {
        require(open(), "a lease shows its pages until it ends");
        return {state_->table, state_->lease.residual, state_->exact != sequence_state::all};
    }
    /// Calls `f` with a row_run for each run of consecutive rows in one page, in order of position: the sequence's
    /// rows, then the reserved ones. The pointers are valid until the lease ends. Only with a row-major codec
    /// (codec/row_major.hpp). Cost: O(pages), besides `f`.
    template <class F>
    void for_each_run(layer_id layer, head_id head, F&& f) const {
        all_rows().for_each_run(layer, head, f);
    }
    /// Copies the keys and values of these rows, widened to float32. keys, values: (first() + rows(), head_dim).
    /// Only with a codec that writes single rows. Throws: bad_alloc, unless the codec is row-major. Cost: O(numbers).
    void gather(layer_id layer, head_id head, std::span<float> keys, std::span<float> values) const {
        all_rows().gather(layer, head, keys, values);
    }
    /// The codec and the storage of the cache, to read the pages with.
    [[nodiscard]] const auto& codec() const { return cache().codec(); }
    [[nodiscard]] const auto& storage() const { return cache().storage(); }

    /// The number of pages that the lease has allocated, for rows that were computed elsewhere and are copied in as
    /// whole pages, in the codec's format. Requires: the sequence ended at a page boundary.
    [[nodiscard]] std::size_t taken_pages() const {
        expects(open() && !state_->lease.tail_before && state_->lease.spliced.empty(), "whole pages are put in place");
        return state_->table.size() - state_->lease.pages_before;
    }
    /// The bytes of one of these pages.
    [[nodiscard]] std::span<std::byte> page_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        return cache_->bytes(state_->table[state_->lease.pages_before + page].page);
    }
    /// The memory for the page's residual rows, in the format of the f32 codec; empty if none are kept once all rows
    /// are committed.
    [[nodiscard]] std::span<std::byte> residual_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        return cache_access::residual_bytes(*cache_, *state_, state_->lease.pages_before + page);
    }

    /// Commits all rows, as commit does, for rows that were copied in: they do not count as measurements of the prefill
    /// cost.
    void commit_in_place(std::span<const token_id> tokens) {
        require(open() && tokens.size() == rows(), "all rows that are put in place are committed");
        cache_access::commit_in_place(*cache_, *state_, tokens);
        end_committed();
    }

    /// Publishes the first tokens.size() rows as these tokens, releases the others, and ends the lease.
    /// It cannot fail: the lease has already allocated all necessary memory. After a rollback there are no rows, and
    /// committing none has no effect.
    /// Requires: tokens.size() <= rows(), the lease was not committed before, and the rows of these tokens are written
    /// in every layer, if the cache owns the memory of its pages.
    void commit(std::span<const token_id> tokens) {
        require(!committed_, "a lease is committed once");
        require(tokens.size() <= rows(), "no more tokens are committed than rows were reserved");
        if (!open())
            return;
        if constexpr (owns_rows)
            require(!state_->lease.spliced.empty() || state_->lease.written.first(tokens.size()),
                    "rows are written in every layer before they are committed");
        expects(state_->lease.spliced.empty() || tokens.size() == rows(), "a spliced lease is committed whole");
        cache_access::commit(*cache_, *state_, tokens);
        end_committed();
    }

    /// Cancels the reservation: the sequence is as it was before. No effect if the lease has ended.
    void rollback() noexcept {
        if (open())
            cache_access::rollback(*cache_, *state_);
    }

private:
    friend Cache;
    friend class cache_access;
    basic_lease(Cache& cache, sequence_state& state) : cache_(&cache), state_(&state), first_(state.tokens.size()) {
        hold();
    }

    // The cache, which a lease that has ended may have outlived.
    [[nodiscard]] const Cache& cache() const {
        require(open(), "a lease shows its cache until it ends");
        return *cache_;
    }

    // Whether it has not ended; it ends with its sequence and with its cache too.
    [[nodiscard]] bool open() const noexcept { return state_ != nullptr; }
    void hold() noexcept {
        if (state_ != nullptr)
            state_->lease.hold(&state_);
    }

    [[nodiscard]] detail::table_rows<Cache> all_rows() const {
        require(open(), "a lease shows its rows until it ends");
        return {*cache_, state_->table, first_ + state_->lease.rows};
    }

    void end_committed() noexcept {
        state_ = nullptr;
        committed_ = true;
    }

    Cache* cache_;
    sequence_state* state_;
    std::size_t first_;
    bool committed_ = false;
};

}} // namespace kvcache
