// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// At what age entries were used again, by class, and what that says of one that has reached an age: the hits it is
/// good for by the room and time it takes, over the horizon that is best for it (Gittins 1979; hit density, Beckmann,
/// Chen and Cidon 2018). Ages are counted in uses of any entry.
///
///     index(age) = max over h of  P(used again in (age, age + h]) / E[time until then, at most h]
///
/// Cost: O(1) to record; `learn` O(classes * bins^2), to be called once in a cache's worth of uses.
template <std::size_t Classes>
class reuse_ages {
public:
    /// An entry of a class begins to wait for its next use.
    void begin(std::size_t of) noexcept { begun_[of] += 1.0; }

    /// An entry of a class was used again at an age.
    void use(std::size_t of, std::uint32_t age) noexcept { used_[of][bin(age)] += 1.0; }

    /// What an entry of a class is worth at an age; zero before anything is learned.
    [[nodiscard]] double worth(std::size_t of, std::uint32_t age) const noexcept { return index_[of][bin(age)]; }

    /// Takes in what was recorded, and keeps such a share of it for the next time.
    void learn(double kept) noexcept {
        std::array<double, bins> all{};
        double begun = 0.0;
        for (std::size_t c = 0; c < Classes; ++c) {
            begun += begun_[c];
            for (std::size_t b = 0; b < bins; ++b)
                all[b] += used_[c][b];
        }
        for (std::size_t c = 0; c < Classes; ++c) {
            std::array<double, bins> chance; // a class that is hardly known is as all together
            for (std::size_t b = 0; b < bins; ++b)
                chance[b] = (used_[c][b] + (begun > 0.0 ? all[b] / begun : 0.0)) / (begun_[c] + 1.0);
            index(chance, index_[c]);
        }
        for (std::size_t c = 0; c < Classes; ++c) {
            begun_[c] *= kept;
            for (double& used : used_[c])
                used *= kept;
        }
    }

private:
    static constexpr std::size_t bins = 64; // two an octave

    [[nodiscard]] static std::size_t bin(std::uint32_t age) noexcept {
        if (age < 2)
            return 0;
        const auto octave = static_cast<std::size_t>(std::bit_width(age)) - 1;
        return 2 * octave + ((age >> (octave - 1)) & 1);
    }
    [[nodiscard]] static double first_age(std::size_t b) noexcept {
        return static_cast<double>(std::uint64_t{1} << (b / 2)) * (b % 2 == 0 ? 1.0 : 1.5);
    }

    static void index(const std::array<double, bins>& chance, std::array<double, bins>& out) noexcept {
        std::array<double, bins + 1> waiting; // the share that still waits at the begin of a bin
        waiting[0] = 1.0;
        for (std::size_t b = 0; b < bins; ++b)
            waiting[b + 1] = std::max(1e-9, waiting[b] - chance[b]);
        for (std::size_t age = 0; age < bins; ++age) {
            double hits = 0.0, time = 0.0, best = 0.0;
            for (std::size_t b = age; b < bins; ++b) {
                hits += chance[b];
                time += (first_age(b + 1) - first_age(b)) * (waiting[b] + waiting[b + 1]) / 2.0;
                best = std::max(best, hits / time);
            }
            out[age] = best;
        }
    }

    std::array<double, Classes> begun_{};
    std::array<std::array<double, bins>, Classes> used_{};
    std::array<std::array<double, bins>, Classes> index_{};
};

} // namespace kvcache
