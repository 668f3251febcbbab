// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/residual_page.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The residual rows of the pages that a lease writes. Rows are written in ascending order, with a bounded number at
/// once, so pages that are far enough apart reuse the same buffer. Pages that keep their residual rows have buffers of
/// their own.
struct residual_ring {
    std::vector<std::shared_ptr<codec::residual_page>> places = {};
    std::size_t first = 0; ///< Page-table entry of the first buffer.
    std::size_t own = 0;   ///< Leading entries with a buffer of their own; the others share the buffers after these.

    /// The buffer index of a page-table entry, from `first` on.
    [[nodiscard]] std::size_t place_of(std::size_t entry) const noexcept {
        const std::size_t i = entry - first;
        return i < own ? i : own + (i - own) % (places.size() - own);
    }
    [[nodiscard]] codec::residual_page* at(std::size_t entry) const noexcept { return places[place_of(entry)].get(); }

    /// Returns whether no later entry of the table has reused the buffer of this one.
    [[nodiscard]] bool keeps(std::size_t entry, std::size_t entries) const noexcept {
        const std::size_t i = entry - first;
        return i < own || i + (places.size() - own) >= entries - first;
    }

    [[nodiscard]] std::shared_ptr<codec::residual_page> take(std::size_t entry) noexcept {
        return std::move(places[place_of(entry)]);
    }

    /// The number of buffers for `pages` new pages, of which the first `own` have their own, if the pages of `at_once`
    /// consecutive rows and `recent` pages before them are needed together.
    [[nodiscard]] static std::size_t places_for(std::size_t pages, std::size_t own, std::size_t at_once,
                                                std::size_t page_tokens, std::size_t recent) noexcept {
        const std::size_t touched = at_once == 0 ? 0 : (at_once - 1) / page_tokens + 2;
        return std::min(pages, own + touched + recent);
    }
};

}} // namespace kvcache
