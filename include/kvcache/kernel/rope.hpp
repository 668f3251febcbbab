// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/kernel/math.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Rotary position embedding (Su et al. 2021) as a pure rotation: pair i of a head, elements i and i + head_dim / 2, is
/// rotated by position * frequency(i).
class rope {
public:
    rope() = default;

    /// Frequencies: the angle for each position, in radians. (head_dim / 2)
    explicit rope(std::vector<double> frequencies) : frequencies_(std::move(frequencies)) {}

    /// theta^(-2 i / head_dim). Requires: head_dim is even.
    [[nodiscard]] static std::vector<double> standard_frequencies(std::size_t head_dim, double theta) {
        expects(head_dim % 2 == 0, "a rotated head has an even number of dimensions");
        std::vector<double> f(head_dim / 2);
        for (std::size_t i = 0; i < f.size(); ++i)
            f[i] = portable_math::power(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        return f;
    }

    [[nodiscard]] std::span<const double> frequencies() const noexcept { return frequencies_; }

    /// Half of head_dim.
    [[nodiscard]] std::size_t half() const noexcept { return frequencies_.size(); }

    /// Writes the rotation of one position: cosines, then sines. (2, head_dim / 2) The same bits with every compiler
    /// and C library. Cost: about 20 ns a pair.
    void fill(std::int64_t position, std::span<float> rotation) const {
        expects(rotation.size() == 2 * half(), "a rotation is a cosine and a sine a pair");
        for (std::size_t i = 0; i < half(); ++i) {
            const auto angle = portable_math::sincos(static_cast<double>(position) * frequencies_[i]);
            rotation[i] = static_cast<float>(angle.cosine);
            rotation[half() + i] = static_cast<float>(angle.sine);
        }
    }

private:
    std::vector<double> frequencies_;
};

/// Rotates one head by a rotation from `rope::fill`; `out` may be `head`. (head_dim)
inline void rotate_head(std::span<const float> head, std::span<const float> rotation, std::span<float> out) {
    const std::size_t half = head.size() / 2;
    detail::by_sixteen(half, [&](std::size_t i, std::size_t n) {
        const f32x16 x = f32x16::load_up_to(head.data() + i, n), y = f32x16::load_up_to(head.data() + half + i, n);
        const f32x16 c = f32x16::load_up_to(rotation.data() + i, n);
        const f32x16 s = f32x16::load_up_to(rotation.data() + half + i, n);
        fma(x, c, -(y * s)).store_up_to(out.data() + i, n);
        fma(y, c, x * s).store_up_to(out.data() + half + i, n);
    });
}

}} // namespace kvcache
