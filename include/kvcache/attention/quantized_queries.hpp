// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/kernel/column_dot.hpp>
#include <kvcache/kernel/largest.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Smallest magnitude that is not treated as zero: the inverse of a smaller one could overflow.
inline constexpr float least_size = 1e-30f;

/// Queries quantized to integers, for integer keys. Each has a scale, its largest magnitude divided by the largest
/// integer. Sums of integer products are exact, so their order is free. Queries that are multiplied with codes together
/// are interleaved, four values of each in turn, so that one pointer reads them all.
template <class Numbers>
class quantized_queries {
public:
    static constexpr std::size_t max_queries = 4; ///< Maximum number of queries multiplied with codes together.

    quantized_queries(std::size_t head_dim, std::size_t capacity)
        : sixteens_((head_dim + 15) / 16),
          // So that head_dim products of 127 and the largest integer fit an int32.
          largest_(static_cast<float>(std::min<std::size_t>(Numbers::largest, 2147483647 / 127 / (head_dim + 1)))),
          single_(capacity, sixteens_),
          interleaved_(capacity, sixteens_),
          interleaved_count_(capacity),
          scales_(capacity),
          read_(max_queries * sixteens_ * 16) {}

    /// Queries in the layout of the integer dot products, padded with zeros.
    struct view {
        const std::byte* codes;     ///< (head_dim / 4, queries, bytes of four values)
        const std::int32_t* before; ///< Sums of the values before each block of 16, and of all: (sixteens + 1, queries)
    };

    /// Returns N queries from `first` on, interleaved.
    template <std::size_t N>
    [[nodiscard]] view together(std::size_t first) noexcept {
        if constexpr (N == 1)
            return single_.from(first, sixteens_);
        if (interleaved_count_[first] != N)
            interleave<N>(first);
        return interleaved_.from(first, sixteens_);
    }
    /// Factor that dequantizes products with the query.
    [[nodiscard]] float scale(std::size_t q) const noexcept { return scales_[q]; }

    /// Quantizes query `q`. (head_dim, padded with zeros to a multiple of 16)
    void place(std::size_t q, const float* numbers) noexcept {
        forget(q, q + 1);
        code<1>(q, single_, [&](std::size_t d, f32x16(&x)[1]) KVCACHE_INLINE { x[0] = f32x16::load(numbers + d); });
    }
    /// Quantizes the N queries from `first` on, which will be read together. read(d, x) gives elements [d, d + 16) of
    /// each. It is called once for each d, in ascending order, and gives zeros past head_dim.
    template <std::size_t N, class Read>
    KVCACHE_INLINE void place_together(std::size_t first, const Read& read) noexcept {
        forget(first, first + N);
        code<N>(first, N == 1 ? single_ : interleaved_, read);
        interleaved_count_[first] = N;
    }

private:
    struct memory {
        memory(std::size_t capacity, std::size_t sixteens)
            : codes(capacity * sixteens * Numbers::bytes), before(capacity * (sixteens + 1)) {}
        [[nodiscard]] view from(std::size_t q, std::size_t sixteens) const noexcept {
            return {codes.data() + q * sixteens * Numbers::bytes, before.data() + q * (sixteens + 1)};
        }
        aligned_vector<std::byte> codes;
        std::vector<std::int32_t> before;
    };

    // Invalidates the interleaved copies that contain queries [first, last).
    void forget(std::size_t first, std::size_t last) noexcept {
        for (std::size_t i = first - std::min(first, max_queries - 1); i < last; ++i)
            interleaved_count_[i] = 0;
    }

    template <std::size_t N, class Read>
    KVCACHE_INLINE void code(std::size_t first, memory& to, const Read& read) noexcept {
        f32x16 most[N], none[N];
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) most[i] = none[i] = f32x16::zero();
        float* kept = read_.data();
        const std::size_t width = sixteens_ * 16;
        for (std::size_t d = 0; d < width; d += 16, kept += N * 16) {
            f32x16 x[N];
            read(d, x);
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                most[i] = max(size_of(x[i]), most[i]);
                none[i] = fma(x[i], f32x16::zero(), none[i]); // NaN where x is infinite or NaN
                x[i].store(kept + i * 16);
            }
        }
        float top[N], lost[N];
        kvcache::largest(most, top);
        kvcache::sum(none, lost);
        f32x16 inverse[N];
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
            inverse[i] = f32x16::broadcast(top[i] > least_size ? largest_ / top[i] : 0.0f);
            scales_[first + i] = top[i] / largest_ + lost[i];
        }
        std::byte* codes = to.codes.data() + first * sixteens_ * Numbers::bytes;
        std::int32_t* before = to.before.data() + first * (sixteens_ + 1);
        std::fill_n(before, N, 0);
        kept = read_.data();
        for (std::size_t s = sixteens_; s > 0; --s, kept += N * 16, codes += N * Numbers::bytes, before += N) {
            f32x16 x[N];
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) x[i] = f32x16::load(kept + i * 16) * inverse[i];
            std::int32_t sums[N];
            Numbers::put(x, codes, 1, sums);
            to_memory(sums);
            for (std::size_t i = 0; i < N; ++i)
                sums[i] += before[i];
            for (std::size_t i = 0; i < N; ++i)
                before[N + i] = sums[i];
        }
    }

    template <std::size_t N>
    void interleave(std::size_t first) noexcept {
        std::byte* codes = interleaved_.codes.data() + first * sixteens_ * Numbers::bytes;
        std::int32_t* before = interleaved_.before.data() + first * (sixteens_ + 1);
        for (std::size_t s = 0; s <= sixteens_; ++s)
            for (std::size_t i = 0; i < N; ++i)
                before[s * N + i] = single_.from(first + i, sixteens_).before[s];
        for (std::size_t s = 0; s < sixteens_; ++s, codes += N * Numbers::bytes) {
            const std::byte* from[N];
            for (std::size_t i = 0; i < N; ++i)
                from[i] = single_.from(first + i, sixteens_).codes + s * Numbers::bytes;
            kvcache::detail::interleave<Numbers::quad_bytes>(from, codes);
        }
        interleaved_count_[first] = N;
    }

    std::size_t sixteens_;
    float largest_;
    memory single_;                               // query by query
    memory interleaved_;                          // some together
    std::vector<std::uint8_t> interleaved_count_; // from each on; 0: none are interleaved
    std::vector<float> scales_;
    aligned_vector<float> read_; // (sixteens, some queries, 16)
};

}}} // namespace kvcache::detail
