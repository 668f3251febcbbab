// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/handle.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <span>

// The blobs of opaque pages, in a cache with codec::opaque: what a host has written for the tokens of a page.

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

// Calls `f` with the codec and the bytes of a page, or of its block in a group. Requires: there is such a block.
template <class Core, class F>
auto with_blob(const Core& core, std::size_t group, page_id page, F&& f) {
    if constexpr (Core::owns_blocks) {
        const auto& blocks = core.pages().blocks();
        if (const std::size_t keeper = blocks.keeper_of(group); keeper != blocks.paged()) {
            const std::size_t pool = blocks.pool_of(keeper);
            require(blocks.has(pool, page), "a blob of a layer group is of a page that has a block of it");
            return f(blocks.memory().codec(pool), blocks.memory().bytes(pool, blocks.block(pool, page)));
        }
    }
    return f(core.codec(), core.storage().bytes(page));
}

} // namespace detail

/// The blob of a page of a sequence, which is the one of its page-table entry; in a layer group, of its block. Valid
/// until the sequence changes. Requires: the entry is one of its table; of a group with a window, one that the next
/// query reads.
template <class Cache>
[[nodiscard]] std::span<const std::byte> blob_of(const Cache& cache, const typename Cache::sequence& of,
                                                 std::size_t entry, std::size_t group = 0) {
    static_assert(opaque_codec_state<typename Cache::codec_type>, "blobs are in the pages of codec::opaque");
    require(entry < of.table().size(), "a blob is of a page of its sequence");
    return detail::with_blob(cache.core(), group, of.table()[entry].page,
                             [](const auto& codec, std::span<const std::byte> page) { return codec.blob(page); });
}

/// Memory for the blob of a page of a lease, counted from the lease's first one; in a layer group, of its block. The
/// host fills it before it commits, with all rows of the page: those that the sequence had of it too. Requires: the
/// page takes so many bytes; in a whole lease, a group with a window has the page.
template <class Lease>
[[nodiscard]] std::span<std::byte> blob_for(const Lease& lease, std::size_t page, std::size_t bytes,
                                            std::size_t group = 0) {
    const std::size_t tokens = lease.shape().tokens, row = page == 0 ? 0 : page * tokens - lease.first() % tokens;
    const auto open = lease.opened();
    return detail::with_blob(open.core, group, lease.slot_of(row).page,
                             [&](const auto& codec, std::span<std::byte> to) { return codec.begin(to, bytes); });
}

}} // namespace kvcache
