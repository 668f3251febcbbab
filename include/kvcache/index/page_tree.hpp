// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/sibling_order.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A tree of pages, each with the run of tokens it holds and the page that it continues. Siblings are ordered by their
/// runs, so the one that shares most with a query is next to the query's position. Every step is exact at any token,
/// also inside a page, and costs O(log siblings). All memory is allocated at construction: 4 bytes a token, 20 a page.
class page_tree {
public:
    static constexpr std::uint32_t none = sibling_order::none;

    page_tree(page_shape shape, std::size_t pages)
        : page_tokens_(shape.tokens), tokens_(pages * page_tokens_), nodes_(pages), order_(pages) {}

    [[nodiscard]] std::size_t page_tokens() const noexcept { return page_tokens_; }
    [[nodiscard]] bool contains(page_id page) const { return node_of(page).count > 0; }
    [[nodiscard]] bool full(page_id page) const { return node_of(page).count == page_tokens_; }
    [[nodiscard]] bool leaf(page_id page) const { return node_of(page).children.empty(); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        const std::uint32_t above = node_of(page).parent;
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
        expects(contains(page) && leaf(page), "only a leaf leaves the index");
        unlink(index_of(page));
        nodes_[index_of(page)] = {};
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
        const sibling_order::set& level = found.pages.empty() ? roots_ : node_of(found.pages.back()).children;
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
    [[nodiscard]] const node& node_of(page_id page) const { return nodes_[index_of(page)]; }
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

}}} // namespace kvcache::index
