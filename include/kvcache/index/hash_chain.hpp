// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/index/concept.hpp>
#include <kvcache/index/page_tree.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// Page numbers by hash, in one open-addressed table with linear probing, at most half full. Equal hashes only make
/// candidates: the caller compares. Nothing is allocated after construction.
class hash_slots {
public:
    static constexpr std::uint32_t none = page_tree::none;

    explicit hash_slots(std::size_t pages) : slots_(std::bit_ceil(2 * pages + 2)) {}

    /// The first page under this hash for which `is_it(page)` is true; `none` if there is none.
    template <class IsIt>
    [[nodiscard]] std::uint32_t find(std::uint64_t hash, IsIt&& is_it) const {
        const std::uint32_t tag = tag_of(hash);
        for (std::size_t at = home(tag); slots_[at].page != none; at = next(at))
            if (slots_[at].tag == tag && is_it(slots_[at].page))
                return slots_[at].page;
        return none;
    }

    /// Requires: the table holds fewer pages than it was made for.
    void insert(std::uint64_t hash, std::uint32_t page) {
        std::size_t at = home(tag_of(hash));
        while (slots_[at].page != none)
            at = next(at);
        slots_[at] = {tag_of(hash), page};
    }

    /// Requires: the page is in the table under this hash.
    void erase(std::uint64_t hash, std::uint32_t page) {
        std::size_t hole = home(tag_of(hash));
        while (slots_[hole].page != page)
            hole = next(hole);
        // Following slots move up, unless that would put one before its home slot.
        for (std::size_t at = next(hole); slots_[at].page != none; at = next(at))
            if (((at - home(slots_[at].tag)) & mask()) >= ((at - hole) & mask())) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        slots_[hole] = {};
    }

    /// The longest known prefix of a prompt. `chain(past, run)` continues the hash of a prefix by a page.
    template <class Chain>
    void match(const page_tree& tree, const Chain& chain, std::span<const token_id> tokens, index_match& found) const {
        std::uint32_t last = none;
        std::uint64_t hash = 0;
        const std::size_t length = tree.page_tokens();
        auto rest = tokens;
        for (; rest.size() >= length; rest = rest.subspan(length)) {
            hash = chain(hash, rest.first(length));
            const std::uint32_t page =
                find(hash, [&](std::uint32_t one) { return tree.continues(one, last, rest.first(length)); });
            if (page == none)
                break;
            found.pages.push_back(page_id{page});
            found.tokens += length;
            last = page;
        }
        tree.step(found, rest.first(std::min(rest.size(), length)));
    }

private:
    struct slot {
        std::uint32_t tag = 0;
        std::uint32_t page = none;
    };

    [[nodiscard]] static std::uint32_t tag_of(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash); }
    [[nodiscard]] std::size_t mask() const noexcept { return slots_.size() - 1; }
    [[nodiscard]] std::size_t home(std::uint32_t tag) const noexcept { return tag & mask(); }
    [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return (at + 1) & mask(); }

    std::vector<slot> slots_;
};

/// A hash table of full pages, keyed by the chained hash of all tokens up to their end. A page of a long prompt is
/// found with one lookup, however many siblings it has. Parent and tokens are compared on every hit: a match is exact,
/// and no hash is trusted. The rest of a match is searched among the children of the last page, which are ordered by
/// their tokens. All memory is allocated at construction.
///
///     [The cat sat on] -> h1 -> page      h1 [the mat . It] -> h2 -> page      then the tail among the children
///
/// Cost: match O(n + log siblings); insert and erase O(page tokens * log siblings). 4 bytes a token, 44 to 60 a page.
struct hash_chain {
    using role = index_role;
    using state = hashed_tree<hash_slots>;
    unsigned hash_bits = 32; ///< Bits of a hash that are used; fewer yield more candidates whose tokens differ.
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const { return {hash_bits, shape, pages}; }
};

static_assert(index_policy<hash_chain>);

}}} // namespace kvcache::index
