// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Reuse ages by class of entries, and the value of keeping an entry of a given age: the expected hits per unit of
/// space and time over the best horizon (Gittins 1979; hit density, Beckmann, Chen and Cidon 2018). Ages are counted in
/// uses of any entry.
///
///     index(age) = max over h of  P(used again in (age, age + h]) / E[time until then, at most h]
///
/// Cost: O(1) to record; `learn` O(classes * bins^2), to be called about once per as many uses as the cache has
/// entries.
template <std::size_t Classes>
class age_histogram {
public:
    /// Records that an entry of a class starts to wait for its next use.
    void begin(std::size_t of) noexcept { begun_[of] += 1.0; }

    /// Records that an entry of a class was used again at an age.
    void use(std::size_t of, std::uint32_t age) noexcept { used_[of][bin(age)] += 1.0; }

    /// The value of an entry of a class at an age; zero before the first call of `learn`.
    [[nodiscard]] double worth(std::size_t of, std::uint32_t age) const noexcept { return index_[of][bin(age)]; }

    /// Updates the values from the records, then scales the records by `kept`.
    void learn(double kept) noexcept {
        std::array<double, bins> all{};
        double begun = 0.0;
        for (std::size_t c = 0; c < Classes; ++c) {
            begun += begun_[c];
            for (std::size_t b = 0; b < bins; ++b)
                all[b] += used_[c][b];
        }
        for (std::size_t c = 0; c < Classes; ++c) {
            std::array<double, bins> chance; // a class with few records is close to the average
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
        std::array<double, bins + 1> waiting; // share of entries still waiting at the start of a bin
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

}}} // namespace kvcache::eviction
