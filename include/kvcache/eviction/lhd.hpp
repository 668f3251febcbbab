// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/hit_density.hpp>

#include <array>
#include <limits>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

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
    class state;
    [[nodiscard]] state open(eviction_capacity room) const;
};

/// Cost: O(1) each, while a fixed fraction of the entries is evictable; O(n) where no entry of a sample is. At most 32
/// bytes a slot, plus 50 KB.
class lhd::state {
public:
    state(const lhd& policy, eviction_capacity room)
        : entries_(room.slots),
          places_(room.slots, nowhere),
          sampled_(room.slots),
          densities_(room.slots),
          explorer_budget_(static_cast<double>(room.bytes) * 0.01), // the paper's
          random_(policy.seed) {}

    void admit(slot_id slot, const eviction_entry& newcomer) {
        expects(places_[index_of(slot)] == nowhere, "an entry is admitted once");
        enter(index_of(slot));
        ++present_;
        entries_[index_of(slot)] = {.bytes = static_cast<float>(newcomer.bytes), .before = densities_.ages()};
        const bool spared = use(slot);
        if (!spared && density(slot) < victims_density_)
            newcomers_[next_newcomer_++ % newcomers_.size()] = slot;
    }

    void touch(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "a touched entry was admitted");
        known& one = entries_[index_of(slot)];
        const std::uint16_t age = densities_.age(one.used);
        densities_.hit(group(one), age);
        give_up_sparing(one);
        one.before = one.last;
        one.last = age;
        use(slot);
    }

    void on_child_added(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "an entry that gains a child was admitted");
        take_out(index_of(slot));
        places_[index_of(slot)] = covered;
    }

    void on_last_child_removed(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "an entry that lost its last child was admitted");
        if (places_[index_of(slot)] == covered)
            enter(index_of(slot));
    }

    void erase(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "an erased entry was admitted");
        give_up_sparing(entries_[index_of(slot)]);
        take_out(index_of(slot));
        places_[index_of(slot)] = nowhere;
        --present_;
    }

    void evict(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "an evicted entry was admitted");
        const known& one = entries_[index_of(slot)];
        densities_.left(group(one), densities_.age(one.used));
        erase(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& is_evictable) {
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

    void enter(std::uint32_t slot) {
        places_[slot] = count_;
        sampled_[count_++] = slot;
    }

    void take_out(std::uint32_t slot) {
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

inline lhd::state lhd::open(eviction_capacity room) const {
    return state{*this, room};
}

static_assert(eviction_policy<lhd>);

}}} // namespace kvcache::eviction
