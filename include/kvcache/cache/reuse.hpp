// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/page_table.hpp>
#include <kvcache/recompute/concept.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The provenance of the cached keys and values of a span of tokens.
enum class reuse_kind {
    exact,       ///< Computed after the same prefix.
    approximate, ///< Computed after a different prefix.
    missing,     ///< Not cached.
};

/// A span of a prompt's tokens of one kind.
struct prompt_span {
    reuse_kind kind = reuse_kind::missing;
    std::size_t first = 0;
    std::size_t count = 0;

    friend bool operator==(const prompt_span&, const prompt_span&) = default;
};

/// The reusable spans of a prompt. The spans are contiguous and cover the prompt; adjacent approximate spans come from
/// different places.
struct reuse_map {
    std::vector<prompt_span> spans = {};
    std::vector<reused_span> runs = {};   ///< The approximate spans.
    std::vector<page_entry> entries = {}; ///< Where their tokens lie, in order.

    [[nodiscard]] std::size_t end() const noexcept {
        return spans.empty() ? 0 : spans.back().first + spans.back().count;
    }

    /// The number of tokens of a kind.
    [[nodiscard]] std::size_t tokens(reuse_kind kind) const noexcept {
        std::size_t all = 0;
        for (const prompt_span& one : spans)
            all += one.kind == kind ? one.count : 0;
        return all;
    }

    /// Appends a span that is not approximate.
    void add(reuse_kind kind, std::size_t count) {
        if (count > 0)
            spans.push_back({kind, end(), count});
    }

    /// Appends the tokens of these page-table entries, which were computed elsewhere. If `goes_on`, they continue the
    /// last span where it was computed, and extend it.
    template <class Pages>
    void add_run(const Pages& pages, bool goes_on) {
        std::size_t count = 0;
        for (const page_entry& entry : pages)
            count += entry.count;
        if (count == 0)
            return;
        if (goes_on) {
            spans.back().count += count;
            runs.back().count += count;
        } else {
            runs.push_back({end(), count, pages.front().first});
            add(reuse_kind::approximate, count);
        }
        entries.insert(entries.end(), pages.begin(), pages.end());
    }
};

/// A reuse map whose pages are pinned.
template <class Sequence>
class pinned_reuse {
public:
    /// `pins`: an empty sequence that references the pages of the map and their ancestors.
    pinned_reuse(Sequence pins, reuse_map map) : pins_(std::move(pins)), map_(std::move(map)) {}

    [[nodiscard]] const reuse_map& map() const noexcept { return map_; }
    [[nodiscard]] const Sequence& pins() const noexcept { return pins_; }

private:
    Sequence pins_;
    reuse_map map_;
};

}} // namespace kvcache
