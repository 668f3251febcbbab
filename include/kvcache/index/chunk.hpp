// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/index/chunk_table.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/radix.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A radix index that also finds runs of tokens by content alone, after any prefix. A chunk is registered where it
/// lies: at the page of its last token, whose ancestors hold the rest. It is forgotten when that page is erased. Every
/// position of a prompt is looked up, under the rolling hash of as many tokens as the shortest chunk has. A hash only
/// yields candidates, whose tokens are compared (Rabin & Karp 1987).
///
///     cache: [... Norvik lies | near the sea .]     prompt: [Q : | Norvik lies near the sea . | Who ...]
///                  a chunk of two pages                            found, five rows on
struct chunk {
    using role = index_role;
    std::size_t least = 32; ///< Tokens of the shortest chunk.

    /// Cost: as radix; `note` O(chunk tokens); `chunks` O(n), plus, at positions where chunks begin, their lengths.
    class state {
    public:
        state(std::size_t least, page_shape shape, std::size_t pages)
            : tree_(radix{}.open(shape, pages)), table_(least, shape.tokens, pages) {}

        [[nodiscard]] index_match match(std::span<const token_id> tokens) const { return tree_.match(tokens); }
        void match(std::span<const token_id> tokens, index_match& found) const { tree_.match(tokens, found); }

        /// Requires: as radix.
        insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
            const insertion done = tree_.insert(parent, tokens, page);
            if (done.what != insertion::outcome::covered && done.other)
                table_.move(*done.other, page); // its run continues in the new page
            return done;
        }

        /// Requires: the page is a leaf of the index.
        void erase(page_id page) {
            tree_.erase(page);
            table_.erase(page);
        }

        [[nodiscard]] bool contains(page_id page) const { return tree_.contains(page); }
        [[nodiscard]] bool leaf(page_id page) const { return tree_.leaf(page); }
        [[nodiscard]] std::optional<page_id> parent(page_id page) const { return tree_.parent(page); }
        [[nodiscard]] std::span<const token_id> run(page_id page) const { return tree_.run(page); }

        /// Tokens of the shortest chunk.
        [[nodiscard]] std::size_t least() const noexcept { return table_.least(); }

        /// Registers the `count` tokens up to row `end` of page `last` as a chunk, for lookups with the same salt.
        /// Returns whether the chunk is registered now: false if it is shorter than `least`, longer than the tokens
        /// that lie there, or `last` is not in the index. Throws: bad_alloc; the index is then unchanged.
        bool note(std::uint64_t salt, page_id last, std::uint32_t end, std::size_t count) {
            return table_.insert(tree_, salt, {.count = count, .last = last, .end = end});
        }

        /// The chunks of a prompt that end after its first `known` tokens, in order and without overlap. At each
        /// position the longest wins; of several with the same content, one that continues where the previous chunk
        /// ended.
        [[nodiscard]] std::vector<chunk_match> chunks(std::uint64_t salt, std::span<const token_id> tokens,
                                                      std::size_t known) const {
            return table_.find(tree_, salt, tokens, known);
        }

    private:
        radix::state tree_;
        chunk_table table_;
    };

    [[nodiscard]] state open(page_shape shape, std::size_t pages) const { return {least, shape, pages}; }
};

static_assert(index_policy<chunk> && chunk_index_state<chunk::state>);

}}} // namespace kvcache::index
