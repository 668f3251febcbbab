// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// Many small sets of page numbers in one array. Each page is in at most one set, and each set is ordered by the
/// caller's predicate. A set is a treap whose priorities are mixed page numbers: O(log n) expected for any order of
/// insertion. Nothing is allocated after construction. 8 bytes a page.
class sibling_order {
public:
    static constexpr std::uint32_t none = 0xffffffffu;

    /// A set, represented by the root of its treap.
    struct set {
        std::uint32_t top = none;
        [[nodiscard]] bool empty() const noexcept { return top == none; }
    };

    explicit sibling_order(std::size_t pages) : links_(pages) {}

    /// The last page for which `before(page)` holds and the first for which it does not; `none` where there is no such
    /// page. Requires: the pages for which `before` holds precede all others in the set's order.
    struct neighbours {
        std::uint32_t before = none;
        std::uint32_t after = none;
    };
    template <class Before>
    [[nodiscard]] neighbours around(const set& of, Before&& before) const {
        neighbours found;
        for (std::uint32_t at = of.top; at != none;)
            if (before(at)) {
                found.before = at;
                at = links_[at].right;
            } else {
                found.after = at;
                at = links_[at].left;
            }
        return found;
    }

    /// Inserts a page after all pages for which `before` holds. Requires: the page is in no set.
    template <class Before>
    void insert(set& into, std::uint32_t page, Before&& before) {
        std::uint32_t* at = &into.top;
        while (*at != none && priority(*at) > priority(page))
            at = before(*at) ? &links_[*at].right : &links_[*at].left;
        // The rest is split below the page: pages that sort before it to the left.
        std::uint32_t rest = *at;
        *at = page;
        std::uint32_t *left = &links_[page].left, *right = &links_[page].right;
        while (rest != none)
            if (before(rest)) {
                *left = rest;
                left = &links_[rest].right;
                rest = *left;
            } else {
                *right = rest;
                right = &links_[rest].left;
                rest = *right;
            }
        *left = *right = none;
    }

    /// Removes a page. Requires: the page is in the set, and `before` holds for exactly the pages before it.
    template <class Before>
    void erase(set& from, std::uint32_t page, Before&& before) {
        std::uint32_t* at = &from.top;
        while (*at != page)
            at = before(*at) ? &links_[*at].right : &links_[*at].left;
        std::uint32_t left = links_[page].left, right = links_[page].right;
        while (left != none && right != none)
            if (priority(left) > priority(right)) {
                *at = left;
                at = &links_[left].right;
                left = *at;
            } else {
                *at = right;
                at = &links_[right].left;
                right = *at;
            }
        *at = left != none ? left : right;
        links_[page] = {};
    }

private:
    struct link {
        std::uint32_t left = none;
        std::uint32_t right = none;
    };

    // A mixed page number (a bijection, so no two priorities are equal).
    [[nodiscard]] static constexpr std::uint32_t priority(std::uint32_t page) noexcept {
        page = (page ^ (page >> 16)) * 0x7feb352du;
        page = (page ^ (page >> 15)) * 0x846ca68bu;
        return page ^ (page >> 16);
    }

    std::vector<link> links_;
};

/// A tree of pages, each with the run of tokens it holds and the page that it continues. Siblings are ordered by their
/// runs, so the one that shares most with a query is next to the query's position. Every step is exact at any token,
/// also inside a page, and costs O(log siblings). All memory is allocated at construction: 4 bytes a token, 20 a page.
class page_tree {
public:
    static constexpr std::uint32_t none = sibling_order::none;

    page_tree(page_shape shape, std::size_t pages)
        : page_tokens_(shape.tokens), tokens_(pages * page_tokens_), nodes_(pages), order_(pages) {}

    [[nodiscard]] std::size_t page_tokens() const noexcept { return page_tokens_; }
    [[nodiscard]] bool contains(page_id page) const { return nodes_[index_of(page)].count > 0; }
    [[nodiscard]] bool full(page_id page) const { return nodes_[index_of(page)].count == page_tokens_; }
    [[nodiscard]] bool leaf(page_id page) const { return nodes_[index_of(page)].children.empty(); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        const std::uint32_t above = nodes_[index_of(page)].parent;
        return above == none ? std::nullopt : std::optional(page_id{above});
    }

    /// The tokens of a page; empty for a page that is not in the tree.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return run_of(index_of(page)); }

    /// Requires: the parent is in the tree and full. The run has 1 to page-tokens tokens; if the page is already in the
    /// tree, one of the two runs is a prefix of the other.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        expects(!tokens.empty() && tokens.size() <= page_tokens_, "a page's run has one to page-size tokens");
        expects(!parent || (contains(*parent) && full(*parent)), "a parent is indexed and full");
        node& own = nodes_[index_of(page)];
        if (own.count >= tokens.size())
            return {insertion::outcome::covered, page};
        const std::uint32_t above = parent ? index_of(*parent) : none;
        const auto near = order_.around(children(above), before(tokens));
        if (near.after != none && starts_with(run_of(near.after), tokens))
            return {insertion::outcome::covered, page_id{near.after}};

        insertion done{own.count > 0 ? insertion::outcome::extended : insertion::outcome::inserted};
        if (own.count > 0) {
            unlink(index_of(page));
        } else if (near.before != none && starts_with(tokens, run_of(near.before))) {
            done.other = page_id{near.before}; // a page with a prefix of the run is replaced
            erase(page_id{near.before});
        }
        order_.insert(children(above), index_of(page), before(tokens));
        std::copy(tokens.begin(), tokens.end(), tokens_.data() + index_of(page) * page_tokens_);
        own.count = static_cast<std::uint32_t>(tokens.size());
        own.parent = above;
        return done;
    }

    /// Requires: the page is a leaf of the tree.
    void erase(page_id page) {
        node& own = nodes_[index_of(page)];
        expects(own.count > 0 && own.children.empty(), "only a leaf leaves the index");
        unlink(index_of(page));
        own = {};
    }

    /// Returns whether a page is in the tree, full, holds exactly this run and has `last` (or none) as its parent.
    [[nodiscard]] bool continues(std::uint32_t page, std::uint32_t last, std::span<const token_id> run) const {
        return nodes_[page].count == page_tokens_ && nodes_[page].parent == last &&
               std::memcmp(tokens_.data() + page * page_tokens_, run.data(), run.size_bytes()) == 0;
    }

    /// Prefetches the memory that `continues` will read.
    void expect(std::uint32_t page) const noexcept {
        prefetch(nodes_.data(), page);
        for (std::size_t i = 0; i < page_tokens_; i += line_bytes / sizeof(token_id))
            prefetch(tokens_.data(), page * page_tokens_ + i);
    }

    /// Extends a match by one page, whole or in part: the child of the last page that shares most with the query, which
    /// has at most a page's length. Returns whether a whole page matched; if not, the match holds the reason.
    bool step(index_match& found, std::span<const token_id> query) const {
        const sibling_order::set& level = found.pages.empty() ? roots_ : nodes_[index_of(found.pages.back())].children;
        if (query.empty())
            found.end = match_end::complete;
        if (query.empty() || level.empty())
            return false;
        // In lexicographic order, no sibling shares more with a query than its two neighbors.
        const auto near = order_.around(level, before(query));
        const auto shared = [&](std::uint32_t page) { return page == none ? 0 : common(run_of(page), query); };
        const std::size_t earlier = shared(near.before), later = shared(near.after);
        const std::uint32_t best = near.after != none && later >= earlier ? near.after : near.before;
        const std::size_t same = std::max(earlier, later);
        if (same > 0) {
            found.pages.push_back(page_id{best});
            found.tokens += same;
        }
        if (same == page_tokens_)
            return true;
        const auto stored = run_of(best);
        found.end = same == query.size()   ? match_end::complete
                    : same < stored.size() ? match_end::different
                                           : match_end::unknown;
        if (found.end == match_end::different)
            found.stored = stored[same];
        return false;
    }

private:
    struct node {
        sibling_order::set children = {};
        std::uint32_t parent = none;
        std::uint32_t count = 0;
    };

    // True for the pages whose runs sort before these tokens.
    struct comes_before {
        const page_tree* tree;
        std::span<const token_id> tokens;
        bool operator()(std::uint32_t page) const {
            const std::span<const token_id> run = tree->run_of(page);
            const std::size_t same = common(run, tokens);
            return same < tokens.size() && (same == run.size() || run[same] < tokens[same]);
        }
    };
    [[nodiscard]] comes_before before(std::span<const token_id> tokens) const { return {this, tokens}; }

    // The length of the common prefix.
    [[nodiscard]] static std::size_t common(std::span<const token_id> a, std::span<const token_id> b) {
        const std::size_t both = std::min(a.size(), b.size());
        std::size_t same = 0;
        while (same < both && a[same] == b[same])
            ++same;
        return same;
    }
    [[nodiscard]] static bool starts_with(std::span<const token_id> whole, std::span<const token_id> start) {
        return common(whole, start) == start.size();
    }

    [[nodiscard]] std::span<const token_id> run_of(std::uint32_t page) const {
        return {tokens_.data() + page * page_tokens_, nodes_[page].count};
    }
    [[nodiscard]] sibling_order::set& children(std::uint32_t above) {
        return above == none ? roots_ : nodes_[above].children;
    }

    void unlink(std::uint32_t page) { order_.erase(children(nodes_[page].parent), page, before(run_of(page))); }

    std::size_t page_tokens_;
    aligned_vector<token_id> tokens_; // (pages, page_tokens)
    aligned_vector<node> nodes_;      // by page
    sibling_order order_;             // children of each page, and the roots
    sibling_order::set roots_;
};

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
    [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>((hash >> 32) * lines_.size() >> 32);
    }

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

/// An index of a page tree whose full pages are also found by the chained hash of all tokens up to their end. Equal
/// hashes only make candidates: Lookup compares them with the tree. Lookup holds the pages by hash, with `insert(hash,
/// page)`, `erase(hash, page)` and `match(tree, chain, tokens, found)`, where `chain(past, run)` continues a hash. All
/// memory is allocated at construction: that of the tree and of Lookup, and 8 bytes a page.
template <class Lookup>
class hashed_tree {
public:
    /// `hash_bits`: the bits of a hash that are used; 64 or more for all.
    hashed_tree(unsigned hash_bits, page_shape shape, std::size_t pages)
        : used_bits_(hash_bits >= 64 ? ~std::uint64_t{} : (std::uint64_t{1} << hash_bits) - 1),
          tree_(shape, pages),
          lookup_(pages),
          hashes_(pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        index_match found;
        match(tokens, found);
        return found;
    }
    /// The same in the memory of another match.
    void match(std::span<const token_id> tokens, index_match& found) const {
        found.pages.clear();
        found.tokens = 0;
        found.end = match_end::unknown;
        found.stored.reset();
        lookup_.match(
            tree_, [this](std::uint64_t past, std::span<const token_id> run) { return chain(past, run); }, tokens,
            found);
    }

    /// Requires: the parent is in the index and full. The run has 1 to page-tokens tokens; if the page is already in
    /// the index, one of the two runs is a prefix of the other.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        const insertion done = tree_.insert(parent, tokens, page);
        if (done.what != insertion::outcome::covered && tree_.full(page)) {
            const std::uint64_t hash = chain(parent ? hashes_[index_of(*parent)] : 0, tokens);
            hashes_[index_of(page)] = hash;
            lookup_.insert(hash, index_of(page));
        }
        return done;
    }

    /// Requires: the page is a leaf of the index.
    void erase(page_id page) {
        const bool hashed = tree_.full(page);
        tree_.erase(page);
        if (hashed)
            lookup_.erase(hashes_[index_of(page)], index_of(page));
    }

    [[nodiscard]] bool contains(page_id page) const { return tree_.contains(page); }
    [[nodiscard]] bool leaf(page_id page) const { return tree_.leaf(page); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const { return tree_.parent(page); }

    /// The tokens of a page in the index; empty for other pages.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return tree_.run(page); }

private:
    [[nodiscard]] std::uint64_t chain(std::uint64_t past, std::span<const token_id> run) const {
        return seeded_hash(past, std::as_bytes(run)) & used_bits_;
    }

    std::uint64_t used_bits_;
    page_tree tree_;
    Lookup lookup_;                     // full pages
    std::vector<std::uint64_t> hashes_; // by full page: hash of all tokens up to its end
};

}}} // namespace kvcache::index
