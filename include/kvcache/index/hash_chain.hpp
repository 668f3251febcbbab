// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/hash_slots.hpp>
#include <kvcache/index/page_tree.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A hash table of full pages, keyed by the chained hash of all tokens up to their end. A page of a long prompt is
/// found with one lookup, however many siblings it has. Parent and tokens are compared on every hit: a match is exact,
/// and no hash is trusted. The rest of a match is searched among the children of the last page, which are ordered by
/// their tokens. All memory is allocated at construction.
///
///     [The cat sat on] -> h1 -> page      h1 [the mat . It] -> h2 -> page      then the tail among the children
struct hash_chain {
    using role = index_role;
    unsigned hash_bits = 32; ///< Bits of a hash that are used; fewer yield more candidates whose tokens differ.
    class state;
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const;
};

/// Cost: match O(n + log siblings); insert and erase O(page tokens * log siblings). 4 bytes a token, 44 to 60 a page.
class hash_chain::state {
public:
    state(unsigned hash_bits, page_shape shape, std::size_t pages)
        : used_bits_(hash_bits >= 64 ? ~std::uint64_t{} : (std::uint64_t{1} << hash_bits) - 1),
          tree_(shape, pages),
          table_(pages),
          hashes_(pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        index_match found;
        match(tokens, found);
        return found;
    }
    /// The same in the memory of another match.
    void match(std::span<const token_id> tokens, index_match& found) const {
        found.clear();
        std::uint32_t last = none;
        std::uint64_t hash = 0;
        const std::size_t length = tree_.page_tokens();
        auto rest = tokens;
        for (; rest.size() >= length; rest = rest.subspan(length)) {
            hash = chain(hash, rest.first(length));
            const std::uint32_t page =
                table_.find(hash, [&](std::uint32_t one) { return tree_.continues(one, last, rest.first(length)); });
            if (page == none)
                break;
            found.pages.push_back(page_id{page});
            found.tokens += length;
            last = page;
        }
        tree_.step(found, rest.first(std::min(rest.size(), length)));
    }

    /// Requires: the parent is in the index and full. The run has 1 to page-tokens tokens; if the page is already in
    /// the index, one of the two runs is a prefix of the other.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        const insertion done = tree_.insert(parent, tokens, page);
        if (done.what != insertion::outcome::covered && tree_.full(page)) {
            const std::uint64_t hash = chain(parent ? hashes_[index_of(*parent)] : 0, tokens);
            hashes_[index_of(page)] = hash;
            table_.insert(hash, index_of(page));
        }
        return done;
    }

    /// Requires: the page is a leaf of the index.
    void erase(page_id page) {
        const bool listed = tree_.full(page);
        tree_.erase(page);
        if (listed)
            table_.erase(hashes_[index_of(page)], index_of(page));
    }

    [[nodiscard]] bool contains(page_id page) const { return tree_.contains(page); }
    [[nodiscard]] bool leaf(page_id page) const { return tree_.leaf(page); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const { return tree_.parent(page); }

    /// The tokens of a page in the index; empty for other pages.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return tree_.run(page); }

private:
    static constexpr std::uint32_t none = page_tree::none;
    static_assert(none == hash_slots::none);

    [[nodiscard]] std::uint64_t chain(std::uint64_t past, std::span<const token_id> run) const {
        return seeded_hash(past, std::as_bytes(run)) & used_bits_;
    }

    std::uint64_t used_bits_;
    page_tree tree_;
    hash_slots table_;                  // full pages
    std::vector<std::uint64_t> hashes_; // by full page: hash of all tokens up to its end
};

inline hash_chain::state hash_chain::open(page_shape shape, std::size_t pages) const {
    return {hash_bits, shape, pages};
}

static_assert(index_policy<hash_chain>);

}}} // namespace kvcache::index
