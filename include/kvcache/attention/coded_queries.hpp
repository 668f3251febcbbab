// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/kernel/column_dot.hpp>
#include <kvcache/kernel/largest.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache::inline KVCACHE_ABI::detail {

/// Less is nothing: its inverse would not be a number.
inline constexpr float least_size = 1e-30f;

/// Queries as whole numbers, for keys that are whole numbers too: each with a scale, its largest size over the largest
/// whole number. Sums of products of whole numbers are exact, so that their order is free. Those that meet codes
/// together lie together, four numbers of each by turns, so that one pointer leads through all.
template <class Numbers>
class coded_queries {
public:
    static constexpr std::size_t most_together = 4; ///< Queries that meet codes together, at most.

    coded_queries(std::size_t head_dim, std::size_t capacity)
        : sixteens_((head_dim + 15) / 16),
          // So that 127 times the largest, head_dim times, is an int32.
          largest_(static_cast<float>(std::min<std::size_t>(Numbers::largest, 2147483647 / 127 / (head_dim + 1)))),
          apart_(capacity, sixteens_),
          woven_(capacity, sixteens_),
          together_(capacity),
          scales_(capacity),
          read_(most_together * sixteens_ * 16) {}

    /// Queries as products of codes read them, filled up with zeros.
    struct view {
        const std::byte* codes;     ///< (head_dim / 4, queries, bytes of four)
        const std::int32_t* before; ///< Sums of what is before each sixteen, and of all: (sixteens + 1, queries)
    };

    /// N queries from `first` on.
    template <std::size_t N>
    [[nodiscard]] view together(std::size_t first) noexcept {
        if constexpr (N == 1)
            return apart_.from(first, sixteens_);
        if (together_[first] != N)
            weave<N>(first);
        return woven_.from(first, sixteens_);
    }
    /// What products with a query are multiplied by.
    [[nodiscard]] float scale(std::size_t q) const noexcept { return scales_[q]; }

    /// Codes query `q`. (head_dim, filled up with zeros to whole sixteens)
    void place(std::size_t q, const float* numbers) noexcept {
        forget(q, q + 1);
        code<1>(q, apart_, [&](std::size_t d, f32x16(&x)[1]) KVCACHE_INLINE { x[0] = f32x16::load(numbers + d); });
    }
    /// Codes N queries from `first` on that will be asked for together. read(d, x): numbers [d, d + 16) of each; it is
    /// called once for each d, ascending, and gives zeros behind head_dim.
    template <std::size_t N, class Read>
    KVCACHE_INLINE void place_together(std::size_t first, const Read& read) noexcept {
        forget(first, first + N);
        code<N>(first, N == 1 ? apart_ : woven_, read);
        together_[first] = N;
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

    // What was woven of queries [first, last) is no more.
    void forget(std::size_t first, std::size_t last) noexcept {
        for (std::size_t i = first - std::min(first, most_together - 1); i < last; ++i)
            together_[i] = 0;
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
                none[i] = fma(x[i], f32x16::zero(), none[i]); // a NaN where x is no number
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
    void weave(std::size_t first) noexcept {
        std::byte* codes = woven_.codes.data() + first * sixteens_ * Numbers::bytes;
        std::int32_t* before = woven_.before.data() + first * (sixteens_ + 1);
        for (std::size_t s = 0; s <= sixteens_; ++s)
            for (std::size_t i = 0; i < N; ++i)
                before[s * N + i] = apart_.from(first + i, sixteens_).before[s];
        for (std::size_t s = 0; s < sixteens_; ++s, codes += N * Numbers::bytes) {
            const std::byte* from[N];
            for (std::size_t i = 0; i < N; ++i)
                from[i] = apart_.from(first + i, sixteens_).codes + s * Numbers::bytes;
            kvcache::detail::weave<Numbers::quad_bytes>(from, codes);
        }
        together_[first] = N;
    }

    std::size_t sixteens_;
    float largest_;
    memory apart_;                       // query by query
    memory woven_;                       // some together
    std::vector<std::uint8_t> together_; // from each on; 0: none are woven
    std::vector<float> scales_;
    aligned_vector<float> read_; // (sixteens, some queries, 16)
};

} // namespace kvcache::detail
