// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/cuda/device_math.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Cosine and sine of an angle.
struct turn {
    double cosine = 1.0;
    double sine = 0.0;
};

/// RoPE angles as tables that the host computes once: angles of positions 0 to 255 and of every 256th position. Complex
/// multiplication of two entries gives any angle, accurate to the last bits of a double. A device's own sine gives
/// different bits. (Su et al. 2021, RoPE)
struct rope_table {
    static constexpr std::uint32_t fine = 256;

    const turn* turns = nullptr; ///< (fine + coarse, half): the fine ones first; null: no rotation
    std::uint32_t half = 0;      ///< Rotated pairs: elements (i, i + half).
    std::uint32_t coarse = 0;

    /// Computes the table for rotations by up to `most` positions in either direction. (fine + coarse, half)
    [[nodiscard]] static std::vector<turn> make(std::span<const double> frequencies, std::uint32_t most) {
        return make(frequencies, most, [](double angle) { return turn{std::cos(angle), std::sin(angle)}; });
    }
    /// The same from `cosine_sine`, which gives the cosine and sine of an angle: those above are the C library's, whose
    /// last bits another machine need not have.
    template <class CosineSine>
    [[nodiscard]] static std::vector<turn> make(std::span<const double> frequencies, std::uint32_t most,
                                                CosineSine cosine_sine) {
        std::vector<turn> all;
        all.reserve((fine + rows(most)) * frequencies.size());
        const auto add = [&](std::uint64_t position) {
            for (const double frequency : frequencies)
                all.push_back(cosine_sine(static_cast<double>(position) * frequency));
        };
        for (std::uint32_t step = 0; step < fine; ++step)
            add(step);
        for (std::uint32_t step = 0; step < rows(most); ++step)
            add(std::uint64_t{step} * fine);
        return all;
    }
    /// Coarse rows of a table for rotations by up to `most`.
    [[nodiscard]] static constexpr std::uint32_t rows(std::uint32_t most) noexcept { return most / fine + 1; }
    /// Largest rotation in either direction.
    [[nodiscard]] constexpr std::uint64_t reach() const noexcept {
        return turns == nullptr ? std::numeric_limits<std::uint64_t>::max() : std::uint64_t{coarse} * fine - 1;
    }

    /// Cosine and sine of pair `i` for a rotation by `positions`, in either direction.
    [[nodiscard]] KVCACHE_HOST_DEVICE turn at(std::int32_t positions, std::uint32_t i) const noexcept {
        const std::uint32_t size =
            positions < 0 ? 0u - static_cast<std::uint32_t>(positions) : static_cast<std::uint32_t>(positions);
        const turn near = turns[size % fine * half + i], far = turns[(fine + size / fine) * half + i];
        const double cosine = fused(near.cosine, far.cosine, -times_exactly(near.sine, far.sine));
        const double sine = fused(near.sine, far.cosine, times_exactly(near.cosine, far.sine));
        return {cosine, positions < 0 ? -sine : sine};
    }

private:
    // Rounds the product before the sum that it feeds, by a fused multiply-add with zero, which cannot be contracted.
    [[nodiscard]] KVCACHE_HOST_DEVICE static double times_exactly(double x, double y) noexcept {
        return fused(x, y, 0.0);
    }
};

}}} // namespace kvcache::cuda
