// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// The expected hits of an entry per unit of its remaining lifetime, by group and age. Learned from the ages at which
/// entries were hit or evicted, in decaying histograms. Time is counted in uses; ages are in steps of a power of two of
/// uses.
///
///     density(age) = hits at `age` and later / sum over the events at `age` and later of the remaining lifetime
///
/// Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018.
///
/// Cost: O(1) each, amortized. 192 bytes an age, and an age for 32 slots, at least 256 and at most 4,096.
class hit_density {
public:
    explicit hit_density(std::size_t slots)
        : ages_(static_cast<std::uint32_t>(std::clamp<std::size_t>(slots / 32, 256, 4096))),
          period_(static_cast<std::uint32_t>(std::clamp<std::size_t>(std::bit_ceil(slots) * 16, 1u << 10, 1u << 20))),
          hits_(std::size_t{groups} * ages_),
          leaves_(std::size_t{groups} * ages_),
          densities_(std::size_t{groups} * ages_),
          shift_(steps(slots)) {
        for (std::uint32_t g = 0; g < groups; ++g) // approximates GDSF until something is learned
            for (std::uint32_t a = 0; a < ages_; ++a)
                densities_[g * ages_ + a] = static_cast<float>(groups + g + 1) / static_cast<float>(a + 1);
    }

    /// The number of distinct ages; the last one stands for all greater ages.
    [[nodiscard]] std::uint16_t ages() const noexcept { return static_cast<std::uint16_t>(ages_); }

    /// Returns whether little has been learned yet.
    [[nodiscard]] bool young() const noexcept { return rounds_ < 50; }

    [[nodiscard]] std::uint32_t now() const noexcept { return now_; }

    /// The age of an entry last used at time `then`.
    [[nodiscard]] std::uint16_t age(std::uint32_t then) const noexcept {
        return static_cast<std::uint16_t>(std::min((now_ - then) >> shift_, ages_ - 1));
    }

    /// The group of entries whose last two ages have this sum: by powers of two, the shortest highest.
    [[nodiscard]] std::uint32_t group(std::uint32_t ages) const noexcept {
        if (ages == 0)
            return groups - 1;
        std::uint32_t doublings = 0;
        for (; ages < ages_ && doublings < groups - 1; ages *= 2)
            ++doublings;
        return doublings;
    }

    [[nodiscard]] float at(std::uint32_t group, std::uint16_t age) const noexcept {
        return densities_[group * ages_ + age];
    }

    void hit(std::uint32_t group, std::uint16_t age) noexcept { hits_[group * ages_ + age] += 1.0f; }
    void left(std::uint32_t group, std::uint16_t age) noexcept { leaves_[group * ages_ + age] += 1.0f; }

    /// Advances time by one use, with the number of entries present. Learns periodically.
    void pass(std::uint32_t entries) noexcept {
        if (++now_ % period_ != 0)
            return;
        for (float& count : hits_)
            count *= decay;
        for (float& count : leaves_)
            count *= decay;
        // Twice, near the start, once the number of entries that fit is known.
        if (rounds_ == 5 || rounds_ == 25)
            rescale(steps(entries));
        ++rounds_;
        learn();
    }

private:
    static constexpr std::uint32_t groups = 16;
    static constexpr float decay = 0.9f; // the paper's

    // The log2 of the uses in a step, chosen so that all ages together span 32 to 64 uses per entry.
    [[nodiscard]] std::uint32_t steps(std::size_t entries) const noexcept {
        return static_cast<std::uint32_t>(std::bit_width(std::max<std::size_t>(32 * entries / ages_, 1))) - 1;
    }

    void learn() noexcept {
        for (std::uint32_t g = 0; g < groups; ++g) {
            const std::size_t first = std::size_t{g} * ages_;
            float hits = 0.0f, events = 0.0f, time = 0.0f;
            for (std::size_t at = first + ages_; at-- > first;) {
                hits += hits_[at];
                events += hits_[at] + leaves_[at];
                time += events;
                densities_[at] = events > 1e-5f ? hits / time : 0.0f;
            }
        }
    }

    // Changes the step: counts move to the age that now covers theirs.
    void rescale(std::uint32_t shift) noexcept {
        for (std::vector<float>* counts : {&hits_, &leaves_})
            for (std::uint32_t g = 0; g < groups; ++g) {
                float* const row = counts->data() + std::size_t{g} * ages_;
                if (shift > shift_)
                    merge(row, 1u << (shift - shift_));
                else if (shift < shift_)
                    spread(row, 1u << (shift_ - shift));
            }
        shift_ = shift;
    }

    void merge(float* row, std::uint32_t width) const noexcept {
        for (std::uint32_t a = 0; a < ages_; ++a) {
            const float count = row[a];
            row[a] = 0.0f;
            row[a / width] += count;
        }
    }

    void spread(float* row, std::uint32_t width) const noexcept {
        for (std::uint32_t a = ages_; a-- > 0;) {
            const float share = row[a] / static_cast<float>(width);
            row[a] = 0.0f;
            for (std::uint32_t part = 0; part < width; ++part)
                row[std::min(a * width + part, ages_ - 1)] += share;
        }
    }

    std::uint32_t ages_;
    std::uint32_t period_;                         // uses between updates
    std::vector<float> hits_, leaves_, densities_; // (groups, ages)
    std::uint32_t shift_;                          // log2 of the uses in a step
    std::uint32_t now_ = 0;
    std::uint32_t rounds_ = 0;
};

}}} // namespace kvcache::eviction
