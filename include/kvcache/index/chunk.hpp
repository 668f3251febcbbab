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

namespace kvcache::inline KVCACHE_ABI {

/// A radix index that also finds runs of tokens by their content alone, behind whatever past they stand. A chunk is
/// noted where it lies: the page of its last token, whose ancestors hold the rest; it is forgotten when that page
/// leaves. In a prompt every place is looked at, under the rolling hash of as many tokens as the shortest chunk has; a
/// hash only leads to candidates, whose tokens are compared (Rabin & Karp 1987).
///
///     noted: [... Norvik lies | near the sea .]     prompt: [Q : | Norvik lies near the sea . | Who ...]
///                  a chunk of two pages                            found, five rows on
struct chunk {
    using role = index_role;
    std::size_t least = 32; ///< Tokens of the shortest chunk.
    class state;
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const;
};

/// Cost: as radix; `note` O(chunk tokens); `chunks` O(n), and for a place where chunks begin, their lengths.
class chunk::state {
public:
    state(std::size_t least, page_shape shape, std::size_t pages)
        : tree_(radix{}.open(shape, pages)), table_(least, shape.tokens, pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const { return tree_.match(tokens); }

    /// Requires: as radix.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        const insertion done = tree_.insert(parent, tokens, page);
        if (done.what != insertion::outcome::covered && done.other)
            table_.move(*done.other, page); // whose run goes on in this one
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

    /// Remembers the `count` tokens up to row `end` of a page as a chunk, for whoever asks with the same salt. Returns
    /// whether it is known now: not one that is too short, longer than what lies there, or of no page.
    /// Throws: bad_alloc, and nothing has changed then.
    bool note(std::uint64_t salt, page_id last, std::uint32_t end, std::size_t count) {
        return table_.insert(tree_, salt, {.count = count, .last = last, .end = end});
    }

    /// The chunks of a prompt that end behind its first `known` tokens, in order, none over another: at each place the
    /// longest, and of several with one content the one that goes on where the chunk before ended.
    [[nodiscard]] std::vector<chunk_match> chunks(std::uint64_t salt, std::span<const token_id> tokens,
                                                  std::size_t known) const {
        return table_.find(tree_, salt, tokens, known);
    }

private:
    radix::state tree_;
    chunk_table table_;
};

inline chunk::state chunk::open(page_shape shape, std::size_t pages) const {
    return {least, shape, pages};
}

static_assert(index_policy<chunk> && chunk_index_state<chunk::state>);

} // namespace kvcache
