// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/eviction/concept.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
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
          evictions_(std::size_t{groups} * ages_),
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
    void evicted(std::uint32_t group, std::uint16_t age) noexcept { evictions_[group * ages_ + age] += 1.0f; }

    /// Advances time by one use, with the number of entries present. Learns periodically.
    void pass(std::uint32_t entries) noexcept {
        if (++now_ % period_ != 0)
            return;
        for (float& count : hits_)
            count *= decay;
        for (float& count : evictions_)
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
                events += hits_[at] + evictions_[at];
                time += events;
                densities_[at] = events > 1e-5f ? hits / time : 0.0f;
            }
        }
    }

    // Changes the step: counts move to the age that now covers theirs.
    void rescale(std::uint32_t shift) noexcept {
        for (std::vector<float>* counts : {&hits_, &evictions_})
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
    std::uint32_t period_;                            // uses between updates
    std::vector<float> hits_, evictions_, densities_; // (groups, ages)
    std::uint32_t shift_;                             // log2 of the uses in a step
    std::uint32_t now_ = 0;
    std::uint32_t rounds_ = 0;
};

/// Least hit density: of a sample of entries, evicts the one with the fewest expected hits per byte and remaining
/// lifetime. The expectation is learned from the ages at which entries were hit or evicted, by class of their last two
/// reuse ages. A few entries are spared, to learn what would have become of them, and new entries of low density stay
/// in every sample for a while. Entries that are not evictable are skipped; entries with children are not sampled.
///
///     8, later 32 random entries + 8 new entries -> lowest hits / (remaining lifetime * bytes): victim
///
/// Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018.
struct lhd {
    using role = eviction_role;
    std::uint64_t seed = 1; ///< Seed of the sampling.

    /// Cost: O(1) each, while a fixed fraction of the entries is evictable; O(n) where no entry of a sample is. At most
    /// 32 bytes a slot, plus 50 KB.
    class state {
    public:
        state(const lhd& policy, eviction_capacity capacity)
            : entries_(capacity.slots),
              places_(capacity.slots, nowhere),
              sampled_(capacity.slots),
              densities_(capacity.slots),
              explorer_budget_(static_cast<double>(capacity.bytes) * 0.01), // the paper's
              random_(policy.seed) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            add_sample(index_of(slot));
            ++present_;
            entries_[index_of(slot)] = {.bytes = static_cast<float>(newcomer.bytes), .before = densities_.ages()};
            const bool spared = use(slot);
            if (!spared && density(slot) < victims_density_)
                newcomers_[next_newcomer_++ % newcomers_.size()] = slot;
        }

        void touch(slot_id slot) {
            known& one = entries_[index_of(slot)];
            const std::uint16_t age = densities_.age(one.used);
            densities_.hit(group(one), age);
            give_up_sparing(one);
            one.before = one.last;
            one.last = age;
            use(slot);
        }

        void on_child_added(slot_id slot) {
            remove_sample(index_of(slot));
            places_[index_of(slot)] = covered;
        }

        void on_last_child_removed(slot_id slot) {
            if (places_[index_of(slot)] == covered)
                add_sample(index_of(slot));
        }

        void erase(slot_id slot) {
            give_up_sparing(entries_[index_of(slot)]);
            remove_sample(index_of(slot));
            places_[index_of(slot)] = nowhere;
            --present_;
        }

        void evict(slot_id slot) {
            const known& one = entries_[index_of(slot)];
            densities_.evicted(group(one), densities_.age(one.used));
            erase(slot);
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            std::optional<slot_id> found;
            float lowest = std::numeric_limits<float>::max();
            const auto consider = [&](slot_id slot) {
                if (const float here = density(slot); (!found || here < lowest) && is_evictable(slot)) {
                    found = slot;
                    lowest = here;
                }
            };
            const std::uint32_t samples = densities_.young() ? 8 : 32; // few, to learn fast from mistakes
            if (count_ > samples) {
                std::array<std::uint32_t, 32> drawn; // places, then slots: all are prefetched before the first is read
                for (std::uint32_t n = 0; n < samples; ++n)
                    prefetch(sampled_.data(), drawn[n] = static_cast<std::uint32_t>(random() % count_));
                for (std::uint32_t n = 0; n < samples; ++n)
                    prefetch(entries_.data(), drawn[n] = sampled_[drawn[n]]);
                for (std::uint32_t n = 0; n < samples; ++n)
                    consider(slot_id{drawn[n]});
                for (const std::optional<slot_id>& newcomer : newcomers_)
                    if (newcomer && places_[index_of(*newcomer)] < covered)
                        consider(*newcomer);
            }
            if (!found)
                for (std::uint32_t place = 0; place < count_; ++place)
                    consider(slot_id{sampled_[place]});
            if (found)
                victims_density_ = 0.9f * victims_density_ + 0.1f * lowest;
            return found;
        }

    private:
        static constexpr std::uint32_t nowhere = 0xffffffffu, covered = 0xfffffffeu;
        struct known {
            float bytes = 0.0f;
            std::uint32_t used = 0;   // time of the last use
            std::uint16_t last = 0;   // age at the last hit, zero before the first
            std::uint16_t before = 0; // age at the hit before, the greatest age if there was none
            bool spared = false;
        };

        [[nodiscard]] std::uint32_t group(const known& one) const {
            return densities_.group(std::uint32_t{one.last} + one.before);
        }

        [[nodiscard]] float density(slot_id slot) const {
            const known& one = entries_[index_of(slot)];
            const std::uint16_t age = densities_.age(one.used);
            if (age + 1u == densities_.ages())
                return std::numeric_limits<float>::lowest();
            return densities_.at(group(one), age) / one.bytes + (one.spared ? 1.0f : 0.0f);
        }

        // Starts a new age. One use in 32 is drawn; it spares the entry while little is learned and the budget lasts.
        // Returns whether it was drawn.
        bool use(slot_id slot) {
            known& one = entries_[index_of(slot)];
            one.used = densities_.now();
            const bool explores = random() % 32 == 0;
            one.spared = explores && explorer_budget_ > 0.0 && densities_.young();
            if (one.spared)
                explorer_budget_ -= static_cast<double>(one.bytes);
            densities_.pass(present_);
            return explores;
        }

        void add_sample(std::uint32_t slot) {
            places_[slot] = count_;
            sampled_[count_++] = slot;
        }

        void remove_sample(std::uint32_t slot) {
            const std::uint32_t place = places_[slot];
            if (place == covered)
                return;
            sampled_[place] = sampled_[--count_];
            places_[sampled_[place]] = place;
        }

        void give_up_sparing(known& one) {
            if (one.spared)
                explorer_budget_ += static_cast<double>(one.bytes);
            one.spared = false;
        }

        // splitmix64
        [[nodiscard]] std::uint64_t random() {
            std::uint64_t x = random_ += 0x9e3779b97f4a7c15ull;
            x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
            x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
            return x ^ (x >> 31);
        }

        std::vector<known> entries_;
        std::vector<std::uint32_t> places_;  // by slot: index in sampled_, or covered
        std::vector<std::uint32_t> sampled_; // slots, dense
        hit_density densities_;
        std::array<std::optional<slot_id>, 8> newcomers_ = {};
        std::size_t next_newcomer_ = 0;
        float victims_density_ = 0.0f; // decaying mean density of victims
        double explorer_budget_;       // bytes that may be spared
        std::uint64_t random_;
        std::uint32_t count_ = 0;   // size of sampled_
        std::uint32_t present_ = 0; // including entries with children
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<lhd>);

}}} // namespace kvcache::eviction
