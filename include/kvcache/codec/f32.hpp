// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>

#include <algorithm>
#include <cstring>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// Stores keys and values as float32, unchanged: reads return the computed values bit for bit. Keys are transposed in
/// tiles of 16 tokens, so that one vector holds 16 scores. Values are row-major, padded with zeros to whole vectors:
///
///     layer, head:  [ keys: (tokens / 16, head_dim, 16) ][ values: (tokens, padded_head_dim) ]
struct f32 {
    using role = codec_role;

    class state {
    public:
        static constexpr bool in_place = true; ///< Tiles are read in place, without decoding.

        explicit state(page_shape shape) : shape_(shape) {}

        [[nodiscard]] std::size_t page_bytes() const noexcept {
            return std::size_t{shape_.layers} * shape_.kv_heads * head_numbers() * sizeof(float);
        }

        [[nodiscard]] std::string name() const { return "float32"; }

        /// Writes one row. key, value: (head_dim)
        void encode(std::span<std::byte> page, page_row at, std::span<const float> key,
                    std::span<const float> value) const {
            float* keys = reinterpret_cast<float*>(page.data()) + offset(at.layer, at.head);
            float* column =
                keys + std::size_t{at.row / tile_tokens} * shape_.head_dim * tile_tokens + at.row % tile_tokens;
            for (std::size_t d = 0; d < shape_.head_dim; ++d)
                column[d * tile_tokens] = key[d];
            float* row = keys + key_numbers() + at.row * padded_head_dim(shape_.head_dim);
            std::memcpy(row, value.data(), shape_.head_dim * sizeof(float));
        }

        /// Copies the first rows to another page: whole tiles at once, the last partial tile lane by lane.
        void copy(std::span<const std::byte> from, std::span<std::byte> to, std::size_t rows) const {
            const std::size_t whole = rows / tile_tokens * tile_tokens, rest = rows % tile_tokens;
            for (std::size_t head = 0; head < std::size_t{shape_.layers} * shape_.kv_heads; ++head) {
                const float* source = reinterpret_cast<const float*>(from.data()) + head * head_numbers();
                float* target = reinterpret_cast<float*>(to.data()) + head * head_numbers();
                std::copy_n(source, whole * shape_.head_dim, target);
                for (std::size_t d = 0; rest > 0 && d < shape_.head_dim; ++d) {
                    const std::size_t lane = whole * shape_.head_dim + d * tile_tokens;
                    std::copy_n(source + lane, rest, target + lane);
                }
                std::copy_n(source + key_numbers(), rows * padded_head_dim(shape_.head_dim), target + key_numbers());
            }
        }

        /// The keys of a tile, in place. (head_dim, 16)
        [[nodiscard]] const float* keys(std::span<const std::byte> page, page_tile at,
                                        std::span<float>) const noexcept {
            return reinterpret_cast<const float*>(page.data()) + offset(at.layer, at.head) +
                   std::size_t{at.tile} * shape_.head_dim * tile_tokens;
        }

        /// The values of a tile, in place. (16, padded_head_dim)
        [[nodiscard]] const float* values(std::span<const std::byte> page, page_tile at,
                                          std::span<float>) const noexcept {
            return reinterpret_cast<const float*>(page.data()) + offset(at.layer, at.head) + key_numbers() +
                   std::size_t{at.tile} * tile_tokens * padded_head_dim(shape_.head_dim);
        }

    private:
        [[nodiscard]] std::size_t key_numbers() const noexcept { return std::size_t{shape_.tokens} * shape_.head_dim; }
        [[nodiscard]] std::size_t head_numbers() const noexcept {
            return key_numbers() + std::size_t{shape_.tokens} * padded_head_dim(shape_.head_dim);
        }
        [[nodiscard]] std::size_t offset(layer_id layer, head_id head) const noexcept {
            return (std::size_t{index_of(layer)} * shape_.kv_heads + index_of(head)) * head_numbers();
        }

        page_shape shape_;
    };

    [[nodiscard]] state open(page_shape shape) const { return state{shape}; }
};

static_assert(codec_policy<f32>);

}}} // namespace kvcache::codec
