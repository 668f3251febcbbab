// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/cuda/numbers.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI::cuda {

/// A cosine and a sine.
struct turn {
    double cosine = 1.0;
    double sine = 0.0;
};

/// The angles of rotary positions as tables that the host computes once: those of 0 to 255 steps and those of every
/// 256th, whose product is any angle to the last bits of a double. A device's own sines have bits of their own.
/// (Su et al. 2021, RoPE)
struct rotation_steps {
    static constexpr std::uint32_t fine = 256;

    const turn* turns = nullptr; ///< (fine + coarse, half): the fine ones first; null turns nothing
    std::uint32_t half = 0;      ///< Pairs of numbers: (i, i + half).
    std::uint32_t coarse = 0;

    /// The tables for turns of up to `most` positions either way, from angles a position. (fine + coarse, half)
    [[nodiscard]] static std::vector<turn> make(std::span<const double> frequencies, std::uint32_t most) {
        return make(frequencies, most, [](double angle) { return turn{std::cos(angle), std::sin(angle)}; });
    }
    /// The same from `turned`, which gives the cosine and sine of an angle: those above are the C library's, whose last
    /// bits another machine need not have.
    template <class Turned>
    [[nodiscard]] static std::vector<turn> make(std::span<const double> frequencies, std::uint32_t most,
                                                Turned turned) {
        std::vector<turn> all;
        all.reserve((fine + rows(most)) * frequencies.size());
        const auto add = [&](std::uint64_t position) {
            for (const double frequency : frequencies)
                all.push_back(turned(static_cast<double>(position) * frequency));
        };
        for (std::uint32_t step = 0; step < fine; ++step)
            add(step);
        for (std::uint32_t step = 0; step < rows(most); ++step)
            add(std::uint64_t{step} * fine);
        return all;
    }
    /// Coarse rows of the tables for turns up to `most`.
    [[nodiscard]] static constexpr std::uint32_t rows(std::uint32_t most) noexcept { return most / fine + 1; }
    /// The largest turn either way.
    [[nodiscard]] constexpr std::uint64_t reach() const noexcept {
        return turns == nullptr ? std::numeric_limits<std::uint64_t>::max() : std::uint64_t{coarse} * fine - 1;
    }

    /// The cosine and sine of pair `i` after `positions` steps, either way.
    [[nodiscard]] KVCACHE_HOST_DEVICE turn at(std::int32_t positions, std::uint32_t i) const noexcept {
        const std::uint32_t size =
            positions < 0 ? 0u - static_cast<std::uint32_t>(positions) : static_cast<std::uint32_t>(positions);
        const turn near = turns[size % fine * half + i], far = turns[(fine + size / fine) * half + i];
        const double cosine = fused(near.cosine, far.cosine, -times_exactly(near.sine, far.sine));
        const double sine = fused(near.sine, far.cosine, times_exactly(near.cosine, far.sine));
        return {cosine, positions < 0 ? -sine : sine};
    }

private:
    // Rounded before the sum it goes into: by a fused multiply-add with zero, which nothing contracts.
    [[nodiscard]] KVCACHE_HOST_DEVICE static double times_exactly(double x, double y) noexcept {
        return fused(x, y, 0.0);
    }
};

} // namespace kvcache::cuda
