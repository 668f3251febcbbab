// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/page_tree.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A lossy table from hashes to pages. A hash maps to one cache line of eight entries; a page that finds them all taken
/// is not stored, and of two pages under one hash `find` may return either. The caller therefore compares and has a
/// fallback. Nothing is allocated after construction. 16 bytes a page.
class page_hints {
public:
    static constexpr std::uint32_t none = page_tree::none;

    explicit page_hints(std::size_t pages) : lines_(2 * pages / places + 1) {}

    /// A page stored under this hash or under one with the same tag; `none` if there is none.
    [[nodiscard]] std::uint32_t find(std::uint64_t hash) const noexcept {
        const line& at = lines_[home(hash)];
        std::uint32_t found = none; // branch-free: the position is unpredictable
        for (std::size_t i = 0; i < places; ++i)
            found = std::min(found, at.tags[i] == tag(hash) ? at.pages[i] : none);
        return found;
    }

    /// Prefetches the line that `find` will read.
    void expect(std::uint64_t hash) const noexcept { prefetch(lines_.data(), home(hash)); }

    /// Stores a page if there is a free entry. Requires: page != none.
    void insert(std::uint64_t hash, std::uint32_t page) noexcept { replace(hash, none, tag(hash), page); }

    /// Removes a page that may have been stored under this hash.
    void erase(std::uint64_t hash, std::uint32_t page) noexcept { replace(hash, page, 0, none); }

    /// The longest known prefix of a prompt. `chain(past, run)` continues the hash of a prefix by a page.
    template <class Chain>
    void match(const page_tree& tree, const Chain& chain, std::span<const token_id> tokens, index_match& found) const {
        std::uint64_t hash = 0;
        const std::size_t length = tree.page_tokens(), whole = tokens.size() / length;
        for (std::size_t first = 0; first < whole; first += ahead) {
            const std::size_t pages = std::min(ahead, whole - first);
            const auto run = [&](std::size_t i) { return tokens.subspan((first + i) * length, length); };
            std::array<std::uint64_t, ahead> hashes;
            std::array<std::uint32_t, ahead> hints;
            for (std::size_t i = 0; i < pages; ++i) {
                hashes[i] = hash = chain(hash, run(i));
                expect(hash);
            }
            for (std::size_t i = 0; i < pages; ++i)
                if (hints[i] = find(hashes[i]); hints[i] != none)
                    tree.expect(hints[i]);
            if (first == 0 && hints[0] != none)
                found.pages.reserve(whole + 1);
            for (std::size_t i = 0; i < pages; ++i) {
                const std::uint32_t last = found.pages.empty() ? none : index_of(found.pages.back());
                if (hints[i] != none && tree.continues(hints[i], last, run(i))) {
                    found.pages.push_back(page_id{hints[i]});
                    found.tokens += length;
                } else if (!tree.step(found, run(i))) {
                    return;
                }
            }
        }
        tree.step(found, tokens.subspan(whole * length));
    }

private:
    static constexpr std::size_t places = 8;
    static constexpr std::size_t ahead = 16; // pages: about as many as the cache misses a core can have in flight

    struct alignas(line_bytes) line {
        line() { pages.fill(none); }
        std::array<std::uint32_t, places> tags = {};
        std::array<std::uint32_t, places> pages;
    };

    [[nodiscard]] static std::uint32_t tag(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash); }
    [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept { return (hash >> 32) * lines_.size() >> 32; }

    void replace(std::uint64_t hash, std::uint32_t old, std::uint32_t new_tag, std::uint32_t page) noexcept {
        line& at = lines_[home(hash)];
        const auto place =
            static_cast<std::size_t>(std::find(at.pages.begin(), at.pages.end(), old) - at.pages.begin());
        if (place < places) {
            at.tags[place] = new_tag;
            at.pages[place] = page;
        }
    }

    aligned_vector<line> lines_;
};

/// A radix tree of pages. A node is a page with the run of tokens it holds; its children continue it, ordered by their
/// runs, so a match is exact at any token, also inside a page. In addition, a hint table maps the chained hash of all
/// tokens up to the end of a full page to that page. A prompt's hashes do not depend on its pages, so the cache lines
/// of 16 steps are prefetched at once. A hint is compared with the tree before it counts; without a hint the tree is
/// searched.
///
///     root -+- [The cat sat on] -+- [the mat .]      a partial page is a leaf
///           |                    +- [the mouse]
///           +- [The dog]                             hints: h(The cat sat on) -> its page
///
/// Cost: match O(n) expected, at most O(n log siblings); insert and erase O(page tokens * log siblings). 4 bytes a
/// token, 44 a page.
struct radix {
    using role = index_role;
    using state = hashed_tree<page_hints>;
    unsigned hash_bits = 64; ///< Bits of a hash that are used; with fewer, more pages are searched in the tree.
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const { return {hash_bits, shape, pages}; }
};

static_assert(index_policy<radix>);

}}} // namespace kvcache::index
