// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/layers/host_blocks.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Blocks that the cache has itself: those of each group in a storage of their own, keys and values in the format of a
/// codec that writes row by row, or as opaque blobs. A state has no format: its bytes are the host's, and
/// those of an opaque state are as many as each snapshot says. `Storage`, `Codec`: policies.
template <class Storage, class Codec>
class owned_blocks {
public:
    static constexpr bool owned = true;
    using storage_type = opened_by<Storage, std::size_t, std::size_t>;
    using codec_type = opened_by<Codec, page_shape>;

    owned_blocks(Storage storage, Codec codec) : storage_(std::move(storage)), codec_(std::move(codec)) {}

    void add(std::size_t, const layer_group& group, const layers::block_extent& of) {
        pool_memory made{storage_.open(group.opaque ? 0 : of.blocks, of.bytes)};
        if (group.has_rows())
            made.codec.emplace(codec_.open({group.layers, group.kv_heads, group.head_dim, of.tokens}));
        if (group.opaque)
            made.blobs.resize(of.blocks);
        pools_.push_back(std::move(made));
    }
    /// Returns false if the storage refuses. A block is zeroed: rows that are never written are still read, with zero
    /// weight.
    [[nodiscard]] bool acquire(std::size_t pool, std::uint32_t block, std::size_t size) {
        pool_memory& of = pools_[pool];
        if (!of.blobs.empty())
            of.blobs[block].emplace(storage_.open(1, size));
        const bool taken = of.blobs.empty() ? of.storage.acquire(page_id{block}) : of.blobs[block]->acquire(page_id{0});
        if (!taken)
            return false;
        const auto memory = bytes(pool, block);
        if constexpr (opaque_codec_state<codec_type>)
            if (of.codec) {
                of.codec->clear(memory);
                return true;
            }
        std::fill(memory.begin(), memory.end(), std::byte{});
        return true;
    }
    void release(std::size_t pool, std::uint32_t block) noexcept {
        if (pools_[pool].blobs.empty())
            pools_[pool].storage.release(page_id{block});
        else
            pools_[pool].blobs[block].reset();
    }
    [[nodiscard]] bool copy([[maybe_unused]] std::size_t pool, [[maybe_unused]] std::uint32_t from,
                            [[maybe_unused]] std::uint32_t to, [[maybe_unused]] std::size_t rows) const {
        if constexpr (row_writer<codec_type>)
            codec(pool).copy(bytes(pool, from), bytes(pool, to), rows);
        return true; // opaque blocks are shared whole
    }

    [[nodiscard]] std::span<std::byte> bytes(std::size_t pool, std::uint32_t block) const {
        const pool_memory& of = pools_[pool];
        return of.blobs.empty() ? of.storage.bytes(page_id{block}) : of.blobs[block]->bytes(page_id{0});
    }
    [[nodiscard]] const storage_type& storage(std::size_t pool) const noexcept { return pools_[pool].storage; }
    /// Requires: the group keeps keys and values.
    [[nodiscard]] const codec_type& codec(std::size_t pool) const {
        expects(pools_[pool].codec.has_value(), "a block with rows is of a group that keeps keys and values");
        return *pools_[pool].codec;
    }

private:
    struct pool_memory {
        storage_type storage;
        std::optional<codec_type> codec = {};
        std::vector<std::optional<storage_type>> blobs = {}; // of opaque states: a storage of one page for each
    };

    Storage storage_;
    Codec codec_;
    std::vector<pool_memory> pools_;
};

}} // namespace kvcache
