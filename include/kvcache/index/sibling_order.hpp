// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>
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

}}} // namespace kvcache::index
