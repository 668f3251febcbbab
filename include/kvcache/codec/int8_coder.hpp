// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/code_strips.hpp>
#include <kvcache/codec/token_coder.hpp>
#include <kvcache/kernel/number_format.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kvcache::detail {

/// Codes each row as int8 with one scale. Keys lie so that a machine's dot product of four bytes takes them, four
/// numbers of head_dim for each of 16 tokens; values lie row by row:
///
///     keys:   [ codes: (head_dim / 4, 16, 4) ][ scales: (16) ]     values:  [ codes: (16, value_width) ][ scales: (16)
///     ]
class int8_coder {
public:
    int8_coder(page_side side, std::size_t head_dim)
        : side_(side),
          head_dim_(head_dim),
          codes_(side == page_side::keys ? (head_dim + 3) / 4 * 64 : tile_tokens * value_width(head_dim)) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return codes_ + tile_tokens * sizeof(half); }
    [[nodiscard]] std::string name() const { return "int8"; }
    void turn(std::span<float>) const noexcept {}
    void turn_back(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        const tile_strips strips(side_, head_dim_, from);
        std::memset(to, 0, bytes());
        alignas(64) float scales[tile_tokens], inverse[tile_tokens];
        (largest_size(strips, 0, head_dim_) / f32x16::broadcast(127.0f)).store(scales);
        auto* const kept = reinterpret_cast<half*>(to + codes_);
        for (std::size_t lane = 0; lane < tile_tokens; ++lane) {
            kept[lane] = to_half(scales[lane]);
            const float scale = widen(kept[lane]);
            inverse[lane] = scale != 0.0f ? 1.0f / scale : 0.0f;
        }
        const f32x16 by = f32x16::load(inverse);
        for (std::size_t d = 0; d < head_dim_; ++d) {
            alignas(64) float codes[tile_tokens];
            rounded(strips(d) * by, -127.0f, 127.0f).store(codes);
            for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                to[place(d, lane)] = static_cast<std::byte>(static_cast<std::int32_t>(codes[lane]));
        }
    }

    void decode(const std::byte* from, std::size_t, float* to) const noexcept {
        alignas(64) float scales[tile_tokens];
        f32x16::load(reinterpret_cast<const half*>(from + codes_)).store(scales);
        if (side_ == page_side::values) {
            const std::size_t width = value_width(head_dim_);
            for (std::size_t lane = 0; lane < tile_tokens; ++lane) {
                const f32x16 scale = f32x16::broadcast(scales[lane]);
                for (std::size_t c = 0; c < width; c += 16)
                    (code_bytes::load(from + lane * width + c).signed_numbers() * scale).store(to + lane * width + c);
            }
            return;
        }
        for (std::size_t d = 0; d < head_dim_; ++d)
            for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                to[d * tile_tokens + lane] =
                    static_cast<float>(static_cast<std::int8_t>(from[place(d, lane)])) * scales[lane];
    }

    /// The codes and scales of a tile.
    [[nodiscard]] int8_rows codes(const std::byte* from) const noexcept {
        return {reinterpret_cast<const std::int8_t*>(from), reinterpret_cast<const half*>(from + codes_)};
    }

private:
    [[nodiscard]] std::size_t place(std::size_t d, std::size_t lane) const noexcept {
        return side_ == page_side::keys ? d / 4 * 64 + lane * 4 + d % 4 : lane * value_width(head_dim_) + d;
    }

    page_side side_;
    std::size_t head_dim_;
    std::size_t codes_; // bytes
};

} // namespace kvcache::detail
