// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/core/aligned.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// The selected queries of a block in the layout of the kernels: in groups of nearly equal size (8 as 4 + 4, not 6 +
/// 2), so that the values of a group at one element of head_dim are contiguous.
class packed_queries {
public:
    /// Memory for up to `capacity` queries.
    packed_queries(std::size_t head_dim, std::size_t capacity) : head_dim_(head_dim), numbers_(capacity * head_dim) {}

    /// Selects the queries [first, last). Each has to be placed before it is used.
    void select(std::size_t first, std::size_t last) noexcept {
        first_ = first;
        last_ = last;
        groups_ = (last - first + max_queries - 1) / max_queries;
        each_ = groups_ == 0 ? 0 : (last - first) / groups_;
        longer_ = last - first - groups_ * each_;
    }

    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    [[nodiscard]] std::size_t last() const noexcept { return last_; }
    [[nodiscard]] std::size_t groups() const noexcept { return groups_; }

    /// Queries [begin, end) of the selected ones.
    struct range {
        std::size_t begin, end;
    };
    [[nodiscard]] range group(std::size_t g) const noexcept {
        const std::size_t begin = g * each_ + std::min(g, longer_);
        return {begin, begin + each_ + (g < longer_ ? 1 : 0)};
    }
    /// Queries of the group that begins at `begin`. (head_dim, queries of the group)
    [[nodiscard]] const float* numbers(std::size_t begin) const noexcept { return numbers_.data() + begin * head_dim_; }

    /// Sets the values of a selected query, times `scale`. (head_dim)
    void place(std::size_t q, std::span<const float> numbers, float scale) noexcept {
        const std::size_t selected = q - first_, of_longer = longer_ * (each_ + 1);
        const std::size_t size = selected < of_longer ? each_ + 1 : each_; // of its group
        const std::size_t place = (selected < of_longer ? selected : selected - of_longer) % size;
        float* to = numbers_.data() + (selected - place) * head_dim_ + place;
        const float* from = numbers.data();
        for (std::size_t d = 0, dim = head_dim_; d < dim; ++d)
            to[d * size] = from[d] * scale;
    }

private:
    std::size_t head_dim_;
    std::size_t first_ = 0; // first selected query
    std::size_t last_ = 0;
    std::size_t groups_ = 0;
    std::size_t each_ = 0;          // queries of a group
    std::size_t longer_ = 0;        // number of groups with one query more
    aligned_vector<float> numbers_; // by group: (head_dim, queries of the group)
};

}}} // namespace kvcache::detail
