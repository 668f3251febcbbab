// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/hash_slots.hpp>
#include <kvcache/index/page_order.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvcache {

/// A table of full pages under the chained hash of all tokens up to their end, so a page of a long prompt is found by
/// one look, however many siblings it has. Parent and tokens are compared on every hit: a match is exact, and no hash
/// is trusted. What is left at the end of a match is looked for among the children of the last page, which are ordered
/// by their tokens. All memory is taken at the beginning.
///
///     [The cat sat on] -> h1 -> page      h1 [the mat . It] -> h2 -> page      then the tail among the children
struct hash_chain {
    using role = index_role;
    unsigned hash_bits = 32; ///< How much of a hash is used; fewer make more candidates that tokens must refute.
    class state;
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const;
};

/// Cost: match O(n + log siblings); insert and erase O(page tokens * log siblings). 4 bytes a token, 56 a page.
class hash_chain::state {
public:
    state(unsigned hash_bits, page_shape shape, std::size_t pages)
        : page_tokens_(shape.tokens),
          used_bits_(hash_bits >= 64 ? ~std::uint64_t{} : (std::uint64_t{1} << hash_bits) - 1),
          tokens_(std::make_unique<token_id[]>(pages * page_tokens_)),
          nodes_(pages),
          order_(pages),
          table_(pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        index_match found;
        std::uint32_t last = none;
        std::uint64_t hash = 0;
        auto rest = tokens;
        for (; rest.size() >= page_tokens_; rest = rest.subspan(page_tokens_)) {
            hash = chain(hash, rest.first(page_tokens_));
            const std::uint32_t page = full(hash, last, rest.first(page_tokens_));
            if (page == none)
                break;
            found.pages.push_back(page_id{page});
            found.tokens += page_tokens_;
            last = page;
        }
        finish(found, last == none ? roots_ : nodes_[last].children, rest.first(std::min(rest.size(), page_tokens_)));
        return found;
    }

    /// Requires: the parent is in the index and full; the run has 1 to page-tokens tokens and, where the page is in the
    /// index already, begins with the page's run or is the beginning of it.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        expects(!tokens.empty() && tokens.size() <= page_tokens_, "a page's run has one to page-size tokens");
        expects(!parent || (contains(*parent) && run(*parent).size() == page_tokens_), "a parent is indexed and full");
        node& own = nodes_[index_of(page)];
        if (own.count >= tokens.size())
            return {insertion::outcome::covered, page};
        const std::uint32_t above = parent ? index_of(*parent) : none;
        const auto near = order_.around(level(above), before(tokens));
        if (near.after != none && starts_with(run_of(near.after), tokens))
            return {insertion::outcome::covered, page_id{near.after}};

        insertion done{own.count > 0 ? insertion::outcome::extended : insertion::outcome::inserted};
        if (own.count > 0) {
            unlink(index_of(page));
        } else if (near.before != none && starts_with(tokens, run_of(near.before))) {
            done.other = page_id{near.before}; // a shorter form of the same run gives way
            erase(page_id{near.before});
        }
        order_.insert(level(above), index_of(page), before(tokens));
        std::ranges::copy(tokens, tokens_.get() + index_of(page) * page_tokens_);
        own.count = static_cast<std::uint32_t>(tokens.size());
        own.parent = above;
        if (tokens.size() == page_tokens_) {
            own.hash = chain(above == none ? 0 : nodes_[above].hash, tokens);
            table_.insert(own.hash, index_of(page));
        }
        return done;
    }

    /// Requires: the page is a leaf of the index.
    void erase(page_id page) {
        expects(contains(page) && leaf(page), "only a leaf leaves the index");
        node& own = nodes_[index_of(page)];
        unlink(index_of(page));
        if (own.count == page_tokens_)
            table_.erase(own.hash, index_of(page));
        own = {};
    }

    [[nodiscard]] bool contains(page_id page) const { return nodes_[index_of(page)].count > 0; }
    [[nodiscard]] bool leaf(page_id page) const { return nodes_[index_of(page)].children.empty(); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        const std::uint32_t above = nodes_[index_of(page)].parent;
        return above == none ? std::nullopt : std::optional(page_id{above});
    }

    /// The tokens a page holds for the index; empty for a page that is not in it.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return run_of(index_of(page)); }

private:
    static constexpr std::uint32_t none = page_order::none;
    static_assert(none == hash_slots::none);

    struct node {
        page_order::set children = {};
        std::uint32_t parent = none;
        std::uint32_t count = 0;
        std::uint64_t hash = 0; // of all tokens up to the end of a full page
    };

    [[nodiscard]] std::uint64_t chain(std::uint64_t past, std::span<const token_id> run) const {
        return seeded_hash(past, std::as_bytes(run)) & used_bits_;
    }

    [[nodiscard]] std::span<const token_id> run_of(std::uint32_t page) const {
        return {tokens_.get() + page * page_tokens_, nodes_[page].count};
    }
    [[nodiscard]] page_order::set& level(std::uint32_t above) {
        return above == none ? roots_ : nodes_[above].children;
    }

    // Holds for the pages whose runs come before these tokens.
    struct comes_before {
        const state* index;
        std::span<const token_id> tokens;
        bool operator()(std::uint32_t page) const {
            return std::ranges::lexicographical_compare(index->run_of(page), tokens);
        }
    };
    [[nodiscard]] comes_before before(std::span<const token_id> tokens) const { return {this, tokens}; }

    [[nodiscard]] std::uint32_t full(std::uint64_t hash, std::uint32_t above, std::span<const token_id> run) const {
        return table_.find(hash, [&](std::uint32_t page) {
            return nodes_[page].parent == above && std::ranges::equal(run_of(page), run);
        });
    }

    void unlink(std::uint32_t page) { order_.erase(level(nodes_[page].parent), page, before(run_of(page))); }

    [[nodiscard]] static bool starts_with(std::span<const token_id> whole, std::span<const token_id> start) {
        return whole.size() >= start.size() && std::ranges::equal(whole.first(start.size()), start);
    }

    // The tail of a match: the child that shares most with what is left. In lexicographic order nobody shares more with
    // it than its two neighbours.
    void finish(index_match& found, const page_order::set& children, std::span<const token_id> rest) const {
        if (rest.empty()) {
            found.end = match_end::complete;
            return;
        }
        if (children.empty())
            return;
        const auto near = order_.around(children, before(rest));
        const auto common = [&](std::uint32_t page) {
            const auto stored = page == none ? std::span<const token_id>() : run_of(page);
            return static_cast<std::size_t>(std::ranges::mismatch(stored, rest).in1 - stored.begin());
        };
        const std::size_t earlier = common(near.before), later = common(near.after);
        const std::uint32_t best = near.after != none && later >= earlier ? near.after : near.before;
        const std::size_t same = std::max(earlier, later);
        if (same > 0) {
            found.pages.push_back(page_id{best});
            found.tokens += same;
        }
        const auto stored = run_of(best);
        found.end = same == rest.size()    ? match_end::complete
                    : same < stored.size() ? match_end::different
                                           : match_end::unknown;
        if (found.end == match_end::different)
            found.stored = stored[same];
    }

    std::size_t page_tokens_;
    std::uint64_t used_bits_;
    std::unique_ptr<token_id[]> tokens_; // (pages, page_tokens)
    std::vector<node> nodes_;            // by page
    page_order order_;                   // children of one page, and the roots
    page_order::set roots_;
    hash_slots table_; // full pages
};

inline hash_chain::state hash_chain::open(page_shape shape, std::size_t pages) const {
    return {hash_bits, shape, pages};
}

static_assert(index_policy<hash_chain>);

} // namespace kvcache
