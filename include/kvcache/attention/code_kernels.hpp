// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/kernel/code_bytes.hpp>
#include <kvcache/kernel/int8_dot.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvcache::detail {

/// Queries as int8, for keys that are: each with a scale, its largest size / 127. Sums of products of codes are exact,
/// so their order is free.
class coded_queries {
public:
    coded_queries(std::size_t head_dim, std::size_t capacity)
        : quads_((head_dim + 3) / 4), codes_(capacity * quads_ * 4), scales_(capacity) {}

    /// Fours of numbers that a query has.
    [[nodiscard]] std::size_t quads() const noexcept { return quads_; }
    [[nodiscard]] const int8_activation* codes(std::size_t q) const noexcept { return codes_.data() + q * quads_ * 4; }
    [[nodiscard]] float scale(std::size_t q) const noexcept { return scales_[q]; }

    /// Codes numbers(0), ..., numbers(head_dim - 1) as query `q`.
    template <class Numbers>
    void place(std::size_t q, std::size_t head_dim, const Numbers& numbers) noexcept {
        float most = 0.0f;
        for (std::size_t d = 0; d < head_dim; ++d)
            most = std::max(most, std::abs(numbers(d)));
        const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
        constexpr float magic = 12582912.0f; // 1.5 * 2^23
        int8_activation* const to = codes_.data() + q * quads_ * 4;
        for (std::size_t d = 0; d < quads_ * 4; ++d) {
            const float whole = d < head_dim ? std::fma(numbers(d), inverse, magic) - magic : 0.0f;
            to[d] = static_cast<int8_activation>(static_cast<std::int32_t>(std::min(std::max(whole, -127.0f), 127.0f)) +
                                                 activation_offset);
        }
        scales_[q] = most / 127.0f;
    }

private:
    std::size_t quads_;
    aligned_vector<int8_activation> codes_; // (capacity, quads, 4)
    std::vector<float> scales_;
};

/// Scores of `count` queries from `first` on with one tile of int8 keys. scores: (count, most_tiles, 16)
inline void score_codes(const coded_queries& queries, std::size_t first, std::size_t count, const int8_rows& keys,
                        float* scores) noexcept {
    const std::size_t quads = queries.quads();
    const f32x16 scales = f32x16::load(keys.scales);
    alignas(64) std::int32_t sums[16], offsets[16] = {};
    const auto dots = [&]<std::size_t N>(const int8_activation* const(&asked)[N],
                                         std::int32_t(&to)[N][16]) KVCACHE_INLINE {
        int8_vector all[N * int8_parts];
        unrolled<N * int8_parts>([&](auto i) KVCACHE_INLINE { all[i] = no_sums(); });
        for (std::size_t quad = 0; quad < quads; ++quad)
            unrolled<int8_parts>([&](auto part) KVCACHE_INLINE {
                const auto weights = load_weights(keys.codes + quad * 64, part);
                unrolled<N>([&](auto i) KVCACHE_INLINE {
                    all[i * int8_parts + part] =
                        add_dots(all[i * int8_parts + part], weights, load_four(asked[i] + quad * 4));
                });
            });
        for (std::size_t i = 0; i < N; ++i)
            store_sums(all + i * int8_parts, to[i]);
    };
    if constexpr (activation_offset != 0) { // what the offset of the queries added: the keys' own sums
        for (std::size_t quad = 0; quad < quads; ++quad)
            for (std::size_t i = 0; i < 64; ++i)
                offsets[i / 4] += activation_offset * keys.codes[quad * 64 + i];
    }
    const auto finish = [&](std::size_t q, const std::int32_t* from) {
        alignas(64) float whole[16];
        for (std::size_t lane = 0; lane < 16; ++lane)
            whole[lane] = static_cast<float>(from[lane] - offsets[lane]);
        const f32x16 scale = scales * f32x16::broadcast(queries.scale(first + q));
        (f32x16::load(whole) * scale).store(scores + q * most_tiles * tile_tokens);
    };
    std::size_t q = 0;
    for (; q + 2 <= count; q += 2) {
        const int8_activation* const two[] = {queries.codes(first + q), queries.codes(first + q + 1)};
        alignas(64) std::int32_t to[2][16];
        dots(two, to);
        finish(q, to[0]);
        finish(q + 1, to[1]);
    }
    if (q < count) {
        const int8_activation* const one[] = {queries.codes(first + q)};
        alignas(64) std::int32_t to[1][16];
        dots(one, to);
        std::copy_n(to[0], 16, sums);
        finish(q, sums);
    }
}

/// Adds the weighted int8 values [begin, end) of a tile to the sums of N queries: one chain over ascending lanes.
/// weights: (N, 16), times the lanes' scales.
template <std::size_t N, std::size_t Columns>
inline void add_code_columns(const std::int8_t* codes, std::size_t begin, std::size_t end, std::size_t width,
                             std::size_t column, const float* weights, float* to, std::size_t stride) noexcept {
    constexpr std::size_t vectors = Columns * native_parts;
    native_floats sums[N * vectors];
    float* const own = to + column;
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i] = native_floats::load_unaligned(own + i / vectors * stride + i % vectors * native_lanes);
    });
    for (std::size_t lane = begin; lane < end; ++lane) {
        const auto* const row = reinterpret_cast<const std::byte*>(codes + lane * width + column);
        unrolled<Columns>([&](auto c) KVCACHE_INLINE {
            const f32x16 values = code_bytes::load(row + 16 * c).signed_numbers();
            unrolled<N>([&](auto i) KVCACHE_INLINE {
                const native_floats weight(weights[i * tile_tokens + lane]);
                unrolled<native_parts>([&](auto p) KVCACHE_INLINE {
                    auto& sum = sums[i * vectors + c * native_parts + p];
                    sum = fused(weight, values.part[p], sum);
                });
            });
        });
    }
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i].store_unaligned(own + i / vectors * stride + i % vectors * native_lanes);
    });
}

/// The same for all columns of tile `t`, whose lanes [first, last) all N queries see; `q`: the first among the weights.
template <std::size_t N>
inline void add_codes(const int8_rows& values, std::size_t first, std::size_t last, std::size_t width,
                      const tile_weights& weights, std::size_t t, std::size_t q, float* to,
                      std::size_t stride) noexcept {
    alignas(64) float scaled[N * tile_tokens];
    const f32x16 scales = f32x16::load(values.scales);
    for (std::size_t i = 0; i < N; ++i) {
        (f32x16::load(weights.lanes[q + i][t]) * scales).store(scaled + i * tile_tokens);
        if (weights.rescaled[t])
            for (std::size_t c = 0; c < width; c += 16)
                (f32x16::load(to + i * stride + c) * f32x16::broadcast(weights.rescale[t][q + i]))
                    .store(to + i * stride + c);
    }
    constexpr std::size_t many = columns_together(N);
    std::size_t column = 0;
    for (; column + 16 * many <= width; column += 16 * many)
        add_code_columns<N, many>(values.codes, first, last, width, column, scaled, to, stride);
    if constexpr (many > 1)
        for (; column < width; column += 16)
            add_code_columns<N, 1>(values.codes, first, last, width, column, scaled, to, stride);
}

} // namespace kvcache::detail
