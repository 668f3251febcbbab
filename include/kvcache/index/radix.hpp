// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/page_hints.hpp>
#include <kvcache/index/page_tree.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A radix tree of pages. A node is a page with the run of tokens it holds; its children continue it, ordered by their
/// runs, so a match is exact at any token, also inside a page. In addition, a hint table maps the chained hash of all
/// tokens up to the end of a full page to that page. A prompt's hashes do not depend on its pages, so the cache lines
/// of 16 steps are prefetched at once. A hint is compared with the tree before it counts; without a hint the tree is
/// searched.
///
///     root -+- [The cat sat on] -+- [the mat .]      a partial page is a leaf
///           |                    +- [the mouse]
///           +- [The dog]                             hints: h(The cat sat on) -> its page
struct radix {
    using role = index_role;
    unsigned hash_bits = 64; ///< Bits of a hash that are used; with fewer, more pages are searched in the tree.
    class state;
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const;
};

/// Cost: match O(n) expected, at most O(n log siblings); insert and erase O(page tokens * log siblings). 4 bytes a
/// token, 44 a page, all allocated at construction.
class radix::state {
public:
    state(unsigned hash_bits, page_shape shape, std::size_t pages)
        : used_bits_(hash_bits >= 64 ? ~std::uint64_t{} : (std::uint64_t{1} << hash_bits) - 1),
          tree_(shape, pages),
          hints_(pages),
          hashes_(pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        index_match found;
        match(tokens, found);
        return found;
    }
    /// The same in the memory of another match.
    void match(std::span<const token_id> tokens, index_match& found) const {
        found.clear();
        std::uint64_t hash = 0;
        const std::size_t length = tree_.page_tokens(), whole = tokens.size() / length;
        for (std::size_t first = 0; first < whole; first += ahead) {
            const std::size_t pages = std::min(ahead, whole - first);
            const auto run = [&](std::size_t i) { return tokens.subspan((first + i) * length, length); };
            std::array<std::uint64_t, ahead> hashes;
            std::array<std::uint32_t, ahead> hints;
            for (std::size_t i = 0; i < pages; ++i) {
                hashes[i] = hash = chain(hash, run(i));
                hints_.expect(hash);
            }
            for (std::size_t i = 0; i < pages; ++i)
                if (hints[i] = hints_.find(hashes[i]); hints[i] != none)
                    tree_.expect(hints[i]);
            if (first == 0 && hints[0] != none)
                found.pages.reserve(whole + 1);
            for (std::size_t i = 0; i < pages; ++i) {
                const std::uint32_t last = found.pages.empty() ? none : index_of(found.pages.back());
                if (hints[i] != none && tree_.continues(hints[i], last, run(i))) {
                    found.pages.push_back(page_id{hints[i]});
                    found.tokens += length;
                } else if (!tree_.step(found, run(i))) {
                    return;
                }
            }
        }
        tree_.step(found, tokens.subspan(whole * length));
    }

    /// Requires: the parent is in the index and full. The run has 1 to page-tokens tokens; if the page is already in
    /// the index, one of the two runs is a prefix of the other.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        const insertion done = tree_.insert(parent, tokens, page);
        if (done.what != insertion::outcome::covered && tree_.full(page)) {
            const std::uint64_t hash = chain(parent ? hashes_[index_of(*parent)] : 0, tokens);
            hashes_[index_of(page)] = hash;
            hints_.insert(hash, index_of(page));
        }
        return done;
    }

    /// Requires: the page is a leaf of the index.
    void erase(page_id page) {
        const bool hinted = tree_.full(page);
        tree_.erase(page);
        if (hinted)
            hints_.erase(hashes_[index_of(page)], index_of(page));
    }

    [[nodiscard]] bool contains(page_id page) const { return tree_.contains(page); }
    [[nodiscard]] bool leaf(page_id page) const { return tree_.leaf(page); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const { return tree_.parent(page); }

    /// The tokens of a page in the index; empty for other pages.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return tree_.run(page); }

private:
    static constexpr std::uint32_t none = page_tree::none;
    static_assert(none == page_hints::none);
    static constexpr std::size_t ahead = 16; // pages: about as many as the cache misses a core can have in flight

    [[nodiscard]] std::uint64_t chain(std::uint64_t past, std::span<const token_id> run) const {
        return seeded_hash(past, std::as_bytes(run)) & used_bits_;
    }

    std::uint64_t used_bits_;
    page_tree tree_;
    page_hints hints_;                  // full pages
    std::vector<std::uint64_t> hashes_; // by full page: hash of all tokens up to its end
};

inline radix::state radix::open(page_shape shape, std::size_t pages) const {
    return {hash_bits, shape, pages};
}

static_assert(index_policy<radix>);

}}} // namespace kvcache::index
