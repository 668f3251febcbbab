// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/zeroed_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Visibility limit of each query of a block, its running softmax over the current split, and its merged softmax over
/// earlier splits.
class query_states {
public:
    /// Memory for up to `capacity` queries, with values of `width` floats.
    query_states(std::size_t width, std::size_t capacity)
        : width_(width), stride_(softmax_state::numbers(width)), capacity_(capacity), states_(2 * capacity * stride_) {
        queries_.reserve(capacity);
    }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::size_t size() const noexcept { return queries_.size(); }
    /// Floats from one query's running softmax to the next.
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }

    void clear() noexcept { queries_.clear(); }

    /// Adds a query that sees the positions up to `limit`. Its partials are written to `partials`, or merged here if
    /// that is null. (splits, stride)
    void add(std::size_t limit, float* partials) {
        expects(queries_.size() < capacity_, "a block holds as many queries as its capacity");
        queries_.push_back({.limit = limit, .partials = partials});
        running(queries_.size() - 1).clear();
        merged(queries_.size() - 1).forget();
    }

    /// The last position that a query sees.
    [[nodiscard]] std::size_t limit(std::size_t q) const noexcept { return queries_[q].limit; }

    /// Smallest and largest visibility limit of some queries.
    struct limits {
        std::size_t least, most;

        /// Returns the leading tiles that any of the queries sees. Requires: tiles ascend in position.
        [[nodiscard]] std::span<const attention_tile> seen(std::span<const attention_tile> tiles) const noexcept {
            std::size_t count = tiles.size();
            while (count > 0 && tiles[count - 1].position > most)
                --count;
            return tiles.first(count);
        }
        /// Returns whether all queries see a tile to its end.
        [[nodiscard]] bool see_whole(const attention_tile& tile) const noexcept { return tile.end() <= least + 1; }
        /// Returns how many leading tiles all queries see to their ends. Requires: tiles ascend in position.
        [[nodiscard]] std::size_t whole(std::span<const attention_tile> tiles) const noexcept {
            std::size_t count = tiles.size();
            while (count > 0 && !see_whole(tiles[count - 1]))
                --count;
            return count;
        }
    };
    [[nodiscard]] limits limits_of(std::size_t q, std::size_t count) const noexcept {
        limits all{queries_[q].limit, queries_[q].limit};
        for (std::size_t i = 1; i < count; ++i) {
            all.least = std::min(all.least, queries_[q + i].limit);
            all.most = std::max(all.most, queries_[q + i].limit);
        }
        return all;
    }

    [[nodiscard]] softmax_state running(std::size_t q) noexcept { return {states_.data() + q * stride_, width_}; }

    /// Moves a query to a split; its running softmax starts anew if the split changes.
    void enter(std::size_t q, std::size_t split) {
        if (queries_[q].split == split)
            return;
        leave(q);
        queries_[q].split = split;
    }

    /// Ends the current partial softmax of a query.
    void leave(std::size_t q) {
        const softmax_state from = running(q);
        if (from.empty())
            return;
        if (float* partials = queries_[q].partials)
            std::copy_n(from.sums(), stride_, partials + queries_[q].split * stride_);
        else
            merged(q).merge(from);
        from.clear();
    }

    /// Finishes a query that merges here: writes its output. (head_dim)
    void finish(std::size_t q, std::size_t head_dim, float* out) {
        leave(q);
        merged(q).finish(head_dim, out);
    }

private:
    struct query {
        std::size_t limit = 0;
        std::size_t split = 0;     // split of its running softmax
        float* partials = nullptr; // (splits, stride)
    };

    [[nodiscard]] softmax_state merged(std::size_t q) noexcept {
        return {states_.data() + (capacity_ + q) * stride_, width_};
    }

    std::size_t width_;
    std::size_t stride_; // floats of a softmax state
    std::size_t capacity_;
    std::vector<query> queries_;
    aligned_vector<float> states_; // running, then merged: (2, capacity, stride)
};

}}} // namespace kvcache::detail
