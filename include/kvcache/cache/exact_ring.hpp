// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/exact_page.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The exact rows of the pages that a lease writes. Rows run in ascending order and so many at once at most, so pages
/// far enough apart take one another's place; those that stay exact have a place of their own.
struct exact_ring {
    std::vector<std::shared_ptr<exact_page>> places = {};
    std::size_t first = 0; ///< The table's entry that the first place is of.
    std::size_t own = 0;   ///< Leading entries with a place of their own; the others share the places behind.

    /// The place of a table's entry, from `first` on.
    [[nodiscard]] std::size_t place_of(std::size_t entry) const noexcept {
        const std::size_t i = entry - first;
        return i < own ? i : own + (i - own) % (places.size() - own);
    }
    [[nodiscard]] exact_page* at(std::size_t entry) const noexcept { return places[place_of(entry)].get(); }

    /// Whether none of a table's later entries has taken the place of this one.
    [[nodiscard]] bool keeps(std::size_t entry, std::size_t entries) const noexcept {
        const std::size_t i = entry - first;
        return i < own || i + (places.size() - own) >= entries - first;
    }

    [[nodiscard]] std::shared_ptr<exact_page> take(std::size_t entry) noexcept {
        return std::move(places[place_of(entry)]);
    }

    /// The places that `pages` new pages need, of which the first `own` have their own, if those that `at_once`
    /// consecutive rows touch, and `recent` before them, are needed together.
    [[nodiscard]] static std::size_t places_for(std::size_t pages, std::size_t own, std::size_t at_once,
                                                std::size_t page_tokens, std::size_t recent) noexcept {
        const std::size_t touched = at_once == 0 ? 0 : (at_once - 1) / page_tokens + 2;
        return std::min(pages, own + touched + recent);
    }
};

} // namespace kvcache
