// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/page_tree.hpp>

#include <cstddef>

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
