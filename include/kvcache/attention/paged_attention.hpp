// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/query_block.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

/// The pages of one sequence as attention reads them.
template <codec_state Codec, storage_state Storage>
struct paged_rows {
    const Codec* codec = nullptr;
    const Storage* storage = nullptr;
    std::span<const page_entry> table = {};
};

/// How a model attends: its heads, and its rotation (null for a model without one).
struct attention_shape {
    std::uint32_t heads = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    float scale = 1.0f; ///< What scores are multiplied by, usually 1 / sqrt(head_dim).
    const rope* rotation = nullptr;

    /// Query heads that read one key and value head.
    [[nodiscard]] constexpr std::uint32_t group() const noexcept { return heads / kv_heads; }
};

/// Consecutive rows of one sequence that ask. (rows, heads, head_dim)
struct query_rows {
    const float* queries = nullptr; ///< Not rotated.
    const float* rotations =
        nullptr;            ///< `rope::fill` of each row's position, for pages of base 0. (rows, 2, head_dim / 2)
    float* out = nullptr;   ///< Written. (rows, heads, head_dim)
    std::size_t stride = 0; ///< Numbers from one row of queries to the next.
    std::size_t out_stride = 0;
    std::size_t position = 0; ///< Of the first row; each row attends to [0, its position].
    std::size_t rows = 0;
};

namespace detail {

/// Whether a codec's tiles lie in the page, so that looking at one costs nothing.
template <class Codec>
inline constexpr bool reads_in_place = requires {
    requires Codec::in_place;
};

/// Up to 8 queries on one key and value head, walking a page table in order.
template <codec_state Codec, storage_state Storage>
class attention_walk {
public:
    attention_walk(const attention_shape& shape, const paged_rows<Codec, Storage>& pages)
        : shape_(shape),
          pages_(pages),
          block_(shape.head_dim),
          rotation_(shape.head_dim),
          scratch_(slots * (key_numbers() + tile_tokens * value_width(shape.head_dim))) {}

    /// Row `row`, query heads [first_head, first_head + heads) of `kv_head`'s group, for `rows` rows.
    void run(layer_id layer, head_id kv_head, const query_rows& asked, std::size_t row, std::size_t rows,
             std::size_t first_head, std::size_t heads) {
        block_.clear();
        for (std::size_t r = row; r < row + rows; ++r)
            for (std::size_t h = first_head; h < first_head + heads; ++h)
                block_.add(asked.position + r);

        const std::size_t end = asked.position + row + rows; // positions any query sees
        std::size_t start = 0;                               // position of an entry's first row
        bool rotated = false;
        std::int64_t base = 0;
        for (const page_entry& entry : pages_.table) {
            if (start >= end)
                break;
            if (!rotated || entry.base != base) {
                flush();
                base = entry.base;
                rotated = true;
                load(asked, row, rows, first_head, heads, base);
            }
            walk(layer, kv_head, entry, start, std::min<std::size_t>(entry.count, end - start));
            start += entry.count;
        }
        flush();
        std::size_t q = 0;
        for (std::size_t r = row; r < row + rows; ++r)
            for (std::size_t h = first_head; h < first_head + heads; ++h)
                block_.finish(q++, asked.out + r * asked.out_stride + h * shape_.head_dim);
    }

private:
    // Queries rotated by (position - base), scaled, side by side.
    void load(const query_rows& asked, std::size_t row, std::size_t rows, std::size_t first_head, std::size_t heads,
              std::int64_t base) {
        std::size_t q = 0;
        for (std::size_t r = row; r < row + rows; ++r) {
            std::span<const float> rotation;
            if (shape_.rotation != nullptr) {
                if (base == 0) {
                    rotation = {asked.rotations + r * shape_.head_dim, shape_.head_dim};
                } else {
                    shape_.rotation->fill(static_cast<std::int64_t>(asked.position + r) - base, rotation_);
                    rotation = rotation_;
                }
            }
            for (std::size_t h = first_head; h < first_head + heads; ++h, ++q) {
                const std::span query(asked.queries + r * asked.stride + h * shape_.head_dim, shape_.head_dim);
                const auto place = block_.query(q);
                if (rotation.empty())
                    std::ranges::copy(query, place.begin());
                else
                    rotate_head(query, rotation, place);
                for (float& x : place)
                    x *= shape_.scale;
            }
        }
    }

    void walk(layer_id layer, head_id kv_head, const page_entry& entry, std::size_t start, std::size_t count) {
        const std::span<const std::byte> bytes = pages_.storage->bytes(entry.page);
        const std::size_t last = entry.first + count; // row behind the last in use
        for (std::uint32_t tile = entry.first / tile_tokens; tile * tile_tokens < last; ++tile) {
            const std::size_t origin = std::size_t{tile} * tile_tokens;
            const std::size_t first_lane = origin < entry.first ? entry.first - origin : 0;
            const std::size_t last_lane = std::min<std::size_t>(tile_tokens, last - origin);
            const page_tile at{layer, kv_head, tile};
            make_room(); // first: the oldest tile's scratch is decoded into next
            const auto scratch = std::span(scratch_).subspan(taken_++ % slots * (scratch_.size() / slots));
            push({.keys = pages_.codec->keys(bytes, at, scratch.first(key_numbers())),
                  .values = pages_.codec->values(bytes, at, scratch.subspan(key_numbers())),
                  .first = first_lane,
                  .last = last_lane,
                  .position = start + origin + first_lane - entry.first});
        }
    }

    // Tiles wait until as many follow them as go together: those are fetched from memory meanwhile.
    void make_room() {
        if (waiting_ < slots)
            return;
        block_.attend(std::span(tiles_).first(at_once));
        std::copy(tiles_.begin() + at_once, tiles_.end(), tiles_.begin());
        waiting_ -= at_once;
    }

    void push(const attention_tile& tile) {
        if (waiting_ >= at_once) {
            tiles_[waiting_ - at_once].ahead_keys = tile.keys;
            tiles_[waiting_ - at_once].ahead_values = tile.values;
        }
        tiles_[waiting_++] = tile;
    }

    void flush() {
        block_.attend(std::span(tiles_).first(waiting_));
        waiting_ = 0;
    }

    [[nodiscard]] std::size_t key_numbers() const noexcept { return std::size_t{shape_.head_dim} * tile_tokens; }

    static constexpr std::size_t at_once = reads_in_place<Codec> ? 4 : 1;
    static constexpr std::size_t slots = 2 * at_once;

    const attention_shape& shape_;
    const paged_rows<Codec, Storage>& pages_;
    query_block block_;
    std::vector<float> rotation_;
    std::array<attention_tile, slots> tiles_; // the first waiting_ wait
    std::size_t waiting_ = 0;
    std::size_t taken_ = 0;
    aligned_vector<float> scratch_; // (slots, keys and values of a tile)
};

} // namespace detail

/// Causal attention of one key and value head over pages, for the rows [first, last) of `asked`: softmax(q k) v, each
/// row over the positions up to its own (Vaswani et al. 2017; online softmax, Milakov & Gimelshein 2018).
/// Tiles run in table order, long contexts split at fixed positions: the bits of a row depend on its own past alone,
/// never on the rows beside it, the page size or the thread. Cost: O(rows * positions * head_dim * group).
template <codec_state Codec, storage_state Storage>
void attend(const attention_shape& shape, const paged_rows<Codec, Storage>& pages, layer_id layer, head_id kv_head,
            const query_rows& asked, std::size_t first, std::size_t last) {
    detail::attention_walk<Codec, Storage> walk(shape, pages);
    const std::size_t group = shape.group(), head = index_of(kv_head) * group;
    constexpr std::size_t most = query_block::capacity;
    const std::size_t rows_at_once = std::max<std::size_t>(1, most / group);
    for (std::size_t row = first; row < last; row += rows_at_once)
        for (std::size_t h = 0; h < group; h += most)
            walk.run(layer, kv_head, asked, row, std::min(rows_at_once, last - row), head + h,
                     std::min(most, group - h));
}

} // namespace kvcache
