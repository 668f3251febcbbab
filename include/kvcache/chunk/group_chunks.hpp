// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Chunks in a cache of layer groups: rows move if every group keeps rows, and those that moved stay in their blocks.
/// Nothing of it is left where all layers keep the same. Requires: the cache is locked.
template <class PageManager>
class group_chunks {
    static constexpr bool grouped = PageManager::grouped;

public:
    explicit group_chunks(PageManager& pages) noexcept : pages_(pages) {}

    /// Whether rows that were computed elsewhere can be used. Errors: unsupported, where a layer has a state.
    [[nodiscard]] result<void> can_move() const {
        if constexpr (grouped)
            for (std::size_t pool = 0; pool < pages_.blocks().size(); ++pool)
                if (pages_.blocks().is_state(pool))
                    return error{error_code::unsupported, "groups",
                                 "chunks are not reused where a layer is recurrent: its state is of all tokens before"};
        return {};
    }

    /// Whether every group has the rows of a page.
    [[nodiscard]] bool has(page_id page) const noexcept {
        if constexpr (grouped)
            for (std::size_t pool = 0; pool < pages_.blocks().size(); ++pool)
                if (!pages_.blocks().has(pool, page))
                    return false;
        return true;
    }

    /// The blocks of a chunk's page are evicted like those that a prompt will find, and not before them.
    void keep([[maybe_unused]] page_id page) noexcept {
        if constexpr (grouped)
            pages_.note_branch(page);
    }

    /// A sequence that is added later uses the blocks of a page. Throws: bad_alloc. Requires: it has those of all
    /// groups.
    void pin([[maybe_unused]] sequence_state& state, [[maybe_unused]] page_id page) const {
        if constexpr (grouped)
            for (std::size_t pool = 0; pool < pages_.blocks().size(); ++pool)
                state.pinned_blocks.push_back({pool, page});
    }

    /// Uses the blocks of the entries of a table from `first` on, once each.
    void use([[maybe_unused]] const sequence_state& state, [[maybe_unused]] std::size_t first) noexcept {
        if constexpr (grouped)
            for (std::size_t entry = first; entry < state.table.size(); ++entry)
                for (std::size_t pool = 0; pool < pages_.blocks().size(); ++pool)
                    pages_.cover(pool, state.table[entry].page);
    }

private:
    PageManager& pages_;
};

}} // namespace kvcache
