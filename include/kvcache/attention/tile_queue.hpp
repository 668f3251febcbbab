// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_scratch.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/quantized_operand.hpp>
#include <kvcache/core/shape.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Whether a codec's tiles are read in place, so that reading them needs no decoding.
template <class Codec>
inline constexpr bool reads_in_place = requires {
    requires Codec::in_place;
};

/// Queue of tiles that the queries of a block attend to next. A batch of tiles waits until the next batch is queued, so
/// that the next batch can be prefetched meanwhile.
template <class Codec>
class tile_queue {
public:
    explicit tile_queue(attention_scratch& scratch) noexcept : scratch_(scratch) {}

    /// Returns the slot of the next tile, to be filled in place: copying a tile would stall on the stores that just
    /// wrote it. If the queue is full, it processes the oldest batch first to free its memory.
    [[nodiscard]] attention_tile& next() {
        if (waiting_ == tiles_.size()) {
            run(oldest_, at_once);
            oldest_ = at_once - oldest_;
            waiting_ -= at_once;
        }
        return tiles_[place()];
    }

    /// Memory for the decoded floats of the tile that `next` returned. (keys and values of a tile)
    [[nodiscard]] std::span<float> numbers() noexcept {
        const std::size_t each = scratch_.tiles.size() / tiles_.size();
        return std::span(scratch_.tiles).subspan(place() * each, each);
    }
    /// Memory for the mask of that tile. (16)
    [[nodiscard]] float* mask() noexcept { return scratch_.mask.data() + place() * tile_tokens; }

    /// Appends the tile that `next` returned.
    void push() noexcept {
        attention_tile& tile = tiles_[place()];
        tile.ahead_keys = tile.ahead_values = nullptr;
        tile.ahead_key_codes = tile.ahead_value_codes = nullptr;
        if (waiting_ >= at_once) {
            attention_tile& before = tiles_[oldest_ + waiting_ - at_once];
            if (reads_in_place<Codec>) {
                before.ahead_keys = tile.keys;
                before.ahead_values = tile.values;
                tile_fetch::prefetch_tile(tile.keys, tile.values);
            }
            if (gives_codes<Codec> && tile.codes.keys.format != codec::quant_format::none) {
                before.ahead_key_codes = tile.codes.keys.codes;
                before.ahead_value_codes = tile.codes.values.codes;
            }
        }
        ++waiting_;
    }

    /// Processes all waiting tiles.
    void flush() {
        const std::size_t first = std::min(waiting_, at_once);
        run(oldest_, first);
        run(at_once - oldest_, waiting_ - first);
        waiting_ = oldest_ = 0;
    }

private:
    static constexpr std::size_t at_once = query_block::most_tiles;

    [[nodiscard]] std::size_t place() const noexcept { return (oldest_ + waiting_) % tiles_.size(); }

    void run(std::size_t first, std::size_t count) {
        scratch_.block.template run<gives_codes<Codec>>(std::span<const attention_tile>(tiles_).subspan(first, count));
    }

    attention_scratch& scratch_;
    std::array<attention_tile, 2 * at_once> tiles_; // two halves, used alternately; `waiting_` tiles from oldest_ on
    std::size_t oldest_ = 0;                        // first tile of either half
    std::size_t waiting_ = 0;
};

}}} // namespace kvcache::detail
