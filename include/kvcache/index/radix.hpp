// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

namespace kvcache {

/// A tree of pages. A node is a page with the run of tokens it holds; its children continue it, ordered by their runs,
/// so the one that shares most with a query is beside the query's place. Tokens are compared one by one: a match is
/// exact at any token, also inside a page, and no hash is trusted.
///
///     root -+- [The cat sat on] -+- [the mat .]
///           |                    +- [the mouse]      a partial page is a leaf
///           +- [The dog]
struct radix {
    using role = index_role;
    class state;
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const;
};

/// Cost: match O(n log siblings); insert and erase O(page tokens * log siblings). 4 bytes a token, 100 a page.
class radix::state {
public:
    state(page_shape shape, std::size_t pages)
        : page_tokens_(shape.tokens),
          tokens_(std::make_unique<token_id[]>(pages * page_tokens_)),
          nodes_(pages),
          roots_(by_run{this}) {
        for (node& own : nodes_)
            own.children = siblings(by_run{this});
    }

    state(const state&) = delete; // the orders of siblings point here
    state& operator=(const state&) = delete;

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        index_match found;
        for (const siblings* level = &roots_;;) {
            const auto rest = tokens.subspan(found.tokens);
            if (rest.empty()) {
                found.end = match_end::complete;
                return found;
            }
            const auto query = rest.first(std::min(rest.size(), page_tokens_));
            const auto [page, common] = nearest(*level, query);
            if (common == 0) {
                found.end = level->empty() ? match_end::unknown : match_end::different;
                if (!level->empty())
                    found.stored = run(page).front();
                return found;
            }
            found.pages.push_back(page);
            found.tokens += common;
            if (common < page_tokens_) {
                const auto stored = run(page);
                found.end = common == rest.size()    ? match_end::complete
                            : common < stored.size() ? match_end::different
                                                     : match_end::unknown;
                if (found.end == match_end::different)
                    found.stored = stored[common];
                return found;
            }
            level = &node_of(page).children;
        }
    }

    /// Requires: the parent is in the index and full; the run has 1 to page-tokens tokens and, where the page is in the
    /// index already, begins with the page's run or is the beginning of it.
    /// Throws: bad_alloc, the first time a page is inserted; nothing has changed then.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        expects(!tokens.empty() && tokens.size() <= page_tokens_, "a page's run has one to page-size tokens");
        expects(!parent || (contains(*parent) && run(*parent).size() == page_tokens_), "a parent is indexed and full");
        siblings& level = parent ? node_of(*parent).children : roots_;
        node& own = node_of(page);
        if (own.present && own.count >= tokens.size())
            return {insertion::outcome::covered, page};

        prepare(page);
        insertion done{own.present ? insertion::outcome::extended : insertion::outcome::inserted};
        auto holder = level.lower_bound(tokens);
        if (holder != level.end() && starts_with(run(*holder), tokens))
            return {insertion::outcome::covered, *holder};
        if (own.present) {
            own.link = level.extract(page);
        } else if (holder != level.begin()) {
            const page_id before = *std::prev(holder);
            if (starts_with(tokens, run(before))) { // a shorter form of the same run gives way
                erase(before);
                done.other = before;
            }
        }
        std::ranges::copy(tokens, tokens_.get() + index_of(page) * page_tokens_);
        own.count = static_cast<std::uint32_t>(tokens.size());
        own.parent = parent;
        own.present = true;
        level.insert(std::move(own.link));
        return done;
    }

    /// Requires: the page is a leaf of the index.
    void erase(page_id page) {
        expects(contains(page) && leaf(page), "only a leaf leaves the index");
        node& own = node_of(page);
        own.link = (own.parent ? node_of(*own.parent).children : roots_).extract(page);
        own.count = 0;
        own.parent.reset();
        own.present = false;
    }

    [[nodiscard]] bool contains(page_id page) const { return node_of(page).present; }
    [[nodiscard]] bool leaf(page_id page) const { return node_of(page).children.empty(); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const { return node_of(page).parent; }

    /// The tokens a page holds for the index; empty for a page that is not in it.
    [[nodiscard]] std::span<const token_id> run(page_id page) const {
        return {tokens_.get() + index_of(page) * page_tokens_, node_of(page).count};
    }

private:
    struct by_run {
        using is_transparent = void;
        const state* index;

        static bool less(std::span<const token_id> a, std::span<const token_id> b) {
            return std::ranges::lexicographical_compare(a, b);
        }
        bool operator()(page_id a, page_id b) const { return less(index->run(a), index->run(b)); }
        bool operator()(page_id a, std::span<const token_id> b) const { return less(index->run(a), b); }
        bool operator()(std::span<const token_id> a, page_id b) const { return less(a, index->run(b)); }
    };
    using siblings = std::set<page_id, by_run>;

    struct node {
        siblings children{by_run{nullptr}};
        siblings::node_type link = {}; // among its siblings; kept here while the page is in no level
        std::optional<page_id> parent = {};
        std::uint32_t count = 0;
        bool present = false;
    };

    struct likeness {
        page_id page = {};
        std::size_t common = 0;
    };

    // Gives a page the link that it keeps for good, so that nothing behind this can throw.
    void prepare(page_id page) {
        node& own = node_of(page);
        if (own.present || own.link)
            return;
        siblings alone(by_run{this});
        own.link = alone.extract(alone.insert(page).first);
    }

    [[nodiscard]] static bool starts_with(std::span<const token_id> whole, std::span<const token_id> start) {
        return whole.size() >= start.size() && std::ranges::equal(whole.first(start.size()), start);
    }

    [[nodiscard]] std::size_t common(page_id page, std::span<const token_id> query) const {
        const auto stored = run(page);
        return static_cast<std::size_t>(std::ranges::mismatch(stored, query).in1 - stored.begin());
    }

    // In lexicographic order nobody shares more with a query than its two neighbours.
    [[nodiscard]] likeness nearest(const siblings& level, std::span<const token_id> query) const {
        likeness best;
        const auto after = level.lower_bound(query);
        if (after != level.begin())
            best = {*std::prev(after), common(*std::prev(after), query)};
        if (after != level.end())
            if (const likeness next{*after, common(*after, query)}; next.common >= best.common)
                best = next;
        return best;
    }

    [[nodiscard]] node& node_of(page_id page) { return nodes_[index_of(page)]; }
    [[nodiscard]] const node& node_of(page_id page) const { return nodes_[index_of(page)]; }

    std::size_t page_tokens_;
    std::unique_ptr<token_id[]> tokens_; // (pages, page_tokens)
    std::vector<node> nodes_;            // by page
    siblings roots_;
};

inline radix::state radix::open(page_shape shape, std::size_t pages) const {
    return {shape, pages};
}

static_assert(index_policy<radix>);

} // namespace kvcache
