// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/recompute/concept.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// What is known of a span of a prompt's tokens.
enum class reuse_kind {
    exact,       ///< Their keys and values, behind the very same past.
    approximate, ///< Those that they had behind another past.
    missing,     ///< Nothing.
};

/// A span of a prompt's tokens of which one thing is known.
struct reuse_span {
    reuse_kind kind = reuse_kind::missing;
    std::size_t first = 0;
    std::size_t count = 0;

    friend bool operator==(const reuse_span&, const reuse_span&) = default;
};

/// What is known of a prompt, span by span. The spans lie end to end and cover it; approximate ones that lie side by
/// side come from different places.
struct reuse_map {
    std::vector<reuse_span> spans = {};
    std::vector<reused_run> runs = {};    ///< The approximate spans.
    std::vector<page_entry> entries = {}; ///< Where their tokens lie, in order.

    [[nodiscard]] std::size_t end() const noexcept {
        return spans.empty() ? 0 : spans.back().first + spans.back().count;
    }

    /// How many tokens are of a kind.
    [[nodiscard]] std::size_t tokens(reuse_kind kind) const noexcept {
        std::size_t all = 0;
        for (const reuse_span& one : spans)
            all += one.kind == kind ? one.count : 0;
        return all;
    }

    /// Adds a span of tokens that are not approximate.
    void add(reuse_kind kind, std::size_t count) {
        if (count > 0)
            spans.push_back({kind, end(), count});
    }

    /// Adds the tokens of these pages, which were computed elsewhere. What goes on there where the last span ended
    /// makes that longer.
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

/// What is known of a prompt, pinned.
template <class Cache>
class basic_reuse {
public:
    [[nodiscard]] const reuse_map& map() const noexcept { return map_; }

private:
    friend Cache;
    basic_reuse(basic_sequence<Cache> pins, reuse_map map) : pins_(std::move(pins)), map_(std::move(map)) {}

    basic_sequence<Cache> pins_; // of no tokens: it holds the pages, and what they continue
    reuse_map map_;
};

} // namespace kvcache
