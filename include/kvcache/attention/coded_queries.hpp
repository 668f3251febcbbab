// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/kernel/column_dot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache::detail {

/// Less is nothing: its inverse would not be a number.
inline constexpr float least_size = 1e-30f;

/// Queries as whole numbers, for keys that are whole numbers too: each with a scale, its largest size over the largest
/// whole number. Sums of products of whole numbers are exact, so that their order is free.
template <class Numbers>
class coded_queries {
public:
    coded_queries(std::size_t head_dim, std::size_t capacity)
        : sixteens_((head_dim + 15) / 16),
          // So that 127 times the largest, head_dim times, is an int32.
          largest_(static_cast<float>(std::min<std::size_t>(Numbers::largest, 2147483647 / 127 / (head_dim + 1)))),
          codes_(capacity * sixteens_ * Numbers::bytes),
          sums_(capacity * (sixteens_ + 1)),
          scales_(capacity) {}

    /// The query as products of codes read it, filled up with zeros. (sixteens, Numbers::bytes)
    [[nodiscard]] const std::byte* codes(std::size_t q) const noexcept {
        return codes_.data() + q * sixteens_ * Numbers::bytes;
    }
    /// The sum of the numbers in the sixteens [begin, end).
    [[nodiscard]] std::int32_t sum(std::size_t q, std::size_t begin, std::size_t end) const noexcept {
        const std::int32_t* const before = sums_.data() + q * (sixteens_ + 1);
        return before[end] - before[begin];
    }
    [[nodiscard]] float scale(std::size_t q) const noexcept { return scales_[q]; }

    /// Codes query `q`, whose numbers are multiplied by `by` first. (head_dim, filled up with zeros to whole sixteens)
    void place(std::size_t q, const float* numbers, float by) noexcept {
        f32x16 most = f32x16::zero(), none = f32x16::zero();
        for (std::size_t d = 0; d < sixteens_ * 16; d += 16) {
            const f32x16 x = f32x16::load(numbers + d);
            most = max(max(x, -x), most);
            none = fma(x, f32x16::zero(), none); // a NaN where x is no number
        }
        const float top = kvcache::largest(most);
        const f32x16 inverse = f32x16::broadcast(top > least_size ? largest_ / top : 0.0f);
        std::byte* to = codes_.data() + q * sixteens_ * Numbers::bytes;
        std::int32_t* before = sums_.data() + q * (sixteens_ + 1);
        *before = 0;
        for (std::size_t d = 0; d < sixteens_ * 16; d += 16, to += Numbers::bytes, ++before)
            before[1] = before[0] + Numbers::put(f32x16::load(numbers + d) * inverse, to);
        scales_[q] = top / largest_ * by + kvcache::sum(none);
    }

private:
    std::size_t sixteens_;
    float largest_;
    aligned_vector<std::byte> codes_; // (capacity, sixteens, Numbers::bytes)
    std::vector<std::int32_t> sums_;  // of what is before each, and of all (capacity, sixteens + 1)
    std::vector<float> scales_;
};

} // namespace kvcache::detail
