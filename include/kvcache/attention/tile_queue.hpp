// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_scratch.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/side_codes.hpp>
#include <kvcache/core/shape.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace kvcache::inline KVCACHE_ABI::detail {

/// Whether a codec's tiles lie in the page, so that looking at one costs nothing.
template <class Codec>
inline constexpr bool reads_in_place = requires {
    requires Codec::in_place;
};

/// The tiles that the queries of a block are about to take in. They wait until as many follow them as go together:
/// those are fetched from memory meanwhile.
template <class Codec>
class tile_queue {
public:
    explicit tile_queue(attention_scratch& scratch) noexcept : scratch_(scratch) {}

    /// Where the next tile is made, in place: a tile that is copied waits for what was just written into it. If there
    /// is no room, the oldest ones are taken in, so that their memory is the next one's.
    [[nodiscard]] attention_tile& next() {
        if (waiting_ == tiles_.size()) {
            attend(oldest_, at_once);
            oldest_ = at_once - oldest_;
            waiting_ -= at_once;
        }
        return tiles_[place()];
    }

    /// Memory for the numbers of the tile that `next` gave. (keys and values of a tile)
    [[nodiscard]] std::span<float> numbers() noexcept {
        const std::size_t each = scratch_.tiles.size() / tiles_.size();
        return std::span(scratch_.tiles).subspan(place() * each, each);
    }
    /// Memory for its holes. (16)
    [[nodiscard]] float* holes() noexcept { return scratch_.holes.data() + place() * tile_tokens; }

    /// The tile that `next` gave is made, and waits.
    void push() noexcept {
        attention_tile& tile = tiles_[place()];
        tile.ahead_keys = tile.ahead_values = nullptr;
        tile.ahead_key_codes = tile.ahead_value_codes = nullptr;
        if (waiting_ >= at_once) {
            attention_tile& before = tiles_[oldest_ + waiting_ - at_once];
            if (reads_in_place<Codec>) {
                before.ahead_keys = tile.keys;
                before.ahead_values = tile.values;
                tile_fetch::announce(tile.keys, tile.values);
            }
            if (gives_codes<Codec> && tile.codes.keys.format != code_format::none) {
                before.ahead_key_codes = tile.codes.keys.codes;
                before.ahead_value_codes = tile.codes.values.codes;
            }
        }
        ++waiting_;
    }

    /// The queries take in all that wait.
    void flush() {
        const std::size_t first = std::min(waiting_, at_once);
        attend(oldest_, first);
        attend(at_once - oldest_, waiting_ - first);
        waiting_ = oldest_ = 0;
    }

private:
    static constexpr std::size_t at_once = query_block::most_tiles;

    [[nodiscard]] std::size_t place() const noexcept { return (oldest_ + waiting_) % tiles_.size(); }

    void attend(std::size_t first, std::size_t count) {
        scratch_.block.template attend<gives_codes<Codec>>(
            std::span<const attention_tile>(tiles_).subspan(first, count));
    }

    attention_scratch& scratch_;
    std::array<attention_tile, 2 * at_once> tiles_; // two halves by turns; waiting_ wait, from oldest_ on
    std::size_t oldest_ = 0;                        // the first of either half
    std::size_t waiting_ = 0;
};

} // namespace kvcache::detail
