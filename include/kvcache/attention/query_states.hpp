// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI::detail {

/// How far each query of a block sees, its running softmax over the split it is in, and the one that merges splits.
class query_states {
public:
    /// Of up to `capacity` queries, with values of `width` numbers.
    query_states(std::size_t width, std::size_t capacity)
        : width_(width), stride_(softmax_state::numbers(width)), capacity_(capacity), states_(2 * capacity * stride_) {
        asked_.reserve(capacity);
    }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::size_t size() const noexcept { return asked_.size(); }
    /// Numbers from one query's running softmax to the next.
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }

    void clear() noexcept { asked_.clear(); }

    /// Adds a query that sees the positions up to `limit`. Its partials go to `partials`, or merge here if that is
    /// null. (splits, stride)
    void add(std::size_t limit, float* partials) {
        expects(asked_.size() < capacity_, "a block holds as many queries as its capacity");
        asked_.push_back({.limit = limit, .partials = partials});
        running(asked_.size() - 1).clear();
        merged(asked_.size() - 1).forget();
    }

    /// The last position that a query sees.
    [[nodiscard]] std::size_t limit(std::size_t q) const noexcept { return asked_[q].limit; }

    /// How far some queries see, at least and at most.
    struct limits {
        std::size_t least, most;

        /// Those of some tiles, which ascend, that any of the queries sees.
        [[nodiscard]] std::span<const attention_tile> seen(std::span<const attention_tile> tiles) const noexcept {
            std::size_t count = tiles.size();
            while (count > 0 && tiles[count - 1].position > most)
                --count;
            return tiles.first(count);
        }
        /// Whether all of the queries see a tile to its end.
        [[nodiscard]] bool see_whole(const attention_tile& tile) const noexcept { return tile.end() <= least + 1; }
        /// How many of some tiles, which ascend, all of the queries see to their ends.
        [[nodiscard]] std::size_t whole(std::span<const attention_tile> tiles) const noexcept {
            std::size_t count = tiles.size();
            while (count > 0 && !see_whole(tiles[count - 1]))
                --count;
            return count;
        }
    };
    [[nodiscard]] limits limits_of(std::size_t q, std::size_t count) const noexcept {
        limits all{asked_[q].limit, asked_[q].limit};
        for (std::size_t i = 1; i < count; ++i) {
            all.least = std::min(all.least, asked_[q + i].limit);
            all.most = std::max(all.most, asked_[q + i].limit);
        }
        return all;
    }

    [[nodiscard]] softmax_state running(std::size_t q) noexcept { return {states_.data() + q * stride_, width_}; }

    /// A query goes on in a split: the running softmax is of that one.
    void enter(std::size_t q, std::size_t split) {
        if (asked_[q].split == split)
            return;
        leave(q);
        asked_[q].split = split;
    }

    /// Ends the partial softmax that a query is in.
    void leave(std::size_t q) {
        const softmax_state from = running(q);
        if (from.empty())
            return;
        if (float* partials = asked_[q].partials)
            std::copy_n(from.sums(), stride_, partials + asked_[q].split * stride_);
        else
            merged(q).merge(from);
        from.clear();
    }

    /// Ends a query that merges here: writes its output. (head_dim)
    void finish(std::size_t q, std::size_t head_dim, float* out) {
        leave(q);
        merged(q).finish(head_dim, out);
    }

private:
    struct question {
        std::size_t limit = 0;
        std::size_t split = 0;     // the one its running softmax is of
        float* partials = nullptr; // (splits, stride)
    };

    [[nodiscard]] softmax_state merged(std::size_t q) noexcept {
        return {states_.data() + (capacity_ + q) * stride_, width_};
    }

    std::size_t width_;
    std::size_t stride_; // numbers of a softmax state
    std::size_t capacity_;
    std::vector<question> asked_;
    aligned_vector<float> states_; // running, then merged: (2, capacity, stride)
};

} // namespace kvcache::detail
