// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Reuse ages by class of entries, and the value of keeping an entry of a given age: the expected hits per unit of
/// space and time over the best horizon (Gittins 1979; hit density, Beckmann, Chen and Cidon 2018). Ages are counted in
/// uses of any entry.
///
///     index(age) = max over h of  P(used again in (age, age + h]) / E[time until then, at most h]
///
/// Cost: O(1) to record; `learn` O(classes * bins^2) with two bins to each doubling of the longest age, to be called
/// about once per as many uses as the cache has entries.
template <std::size_t Classes>
class age_histogram {
public:
    /// Records that an entry of a class starts to wait for its next use.
    void begin(std::size_t of) noexcept { begun_[of] += 1.0; }

    /// Records that an entry of a class was used again at an age.
    void use(std::size_t of, std::uint32_t age) noexcept {
        const std::size_t b = bin(age);
        used_[of][b] += 1.0;
        ends_ = std::max(ends_, b + 1);
    }

    /// The value of an entry of a class at an age; zero before the first call of `learn`.
    [[nodiscard]] double worth(std::size_t of, std::uint32_t age) const noexcept { return index_[of][bin(age)]; }

    /// Updates the values from the records, then scales the records by `kept`.
    void learn(double kept) noexcept {
        std::array<double, bins> all{};
        double begun = 0.0;
        for (std::size_t c = 0; c < Classes; ++c) {
            begun += begun_[c];
            for (std::size_t b = 0; b < ends_; ++b)
                all[b] += used_[c][b];
        }
        for (std::size_t c = 0; c < Classes; ++c) {
            std::array<double, bins> chance{}; // a class with few records is close to the average
            for (std::size_t b = 0; b < ends_; ++b)
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

    void index(const std::array<double, bins>& chance, std::array<double, bins>& out) const noexcept {
        std::array<double, bins + 1> waiting; // share of entries still waiting at the start of a bin
        waiting[0] = 1.0;
        for (std::size_t b = 0; b < ends_; ++b)
            waiting[b + 1] = std::max(1e-9, waiting[b] - chance[b]);
        for (std::size_t age = 0; age < ends_; ++age) {
            double hits = 0.0, time = 0.0, best = 0.0;
            for (std::size_t b = age; b < ends_; ++b) {
                hits += chance[b];
                time += (first_age(b + 1) - first_age(b)) * (waiting[b] + waiting[b + 1]) / 2.0;
                best = std::max(best, hits / time);
            }
            out[age] = best;
        }
    }

    std::array<double, Classes> begun_{};
    std::array<std::array<double, bins>, Classes> used_{};
    std::array<std::array<double, bins>, Classes> index_{}; // zero from ends_ on
    std::size_t ends_ = 0;                                  // bins that have records, or had some
};

/// Evicts the entry whose next use is worth the least, as learned from the reuse ages of entries with equally many
/// uses. Each class of use counts has its own LRU list. Of the ends of the lists, the entry with the fewest expected
/// hits per byte and time at its age is evicted. Ghosts, several to a slot, record uses after an eviction, so that the
/// learning does not depend on which entries the policy kept. Before anything is learned it is lru; it learns first
/// after as many uses as there are slots, 64 to 2,000.
///
///     used once     [ newest ... oldest ] -+
///     twice         [ newest ... oldest ] -+-> least worth at its age: victim -> ghosts
///     3..4, 5..8, 9 or more times   ...   -+
///
/// The index is that of Gittins 1979 for a hazard learned online; hit density by class and age is from Beckmann, Chen
/// and Cidon, "LHD", NSDI 2018, use counts beyond eviction from "LFU with history". lab/replay.md has its hit ratios.
struct learned_reuse {
    using role = eviction_role;
    std::size_t ghosts_a_slot = 4;

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 32 bytes a slot, 16 a
    /// ghost, 5 KB.
    class state {
    public:
        state(const learned_reuse& policy, eviction_capacity capacity)
            : queues_(capacity.slots, classes),
              entries_(capacity.slots),
              ghosts_(capacity.slots * policy.ghosts_a_slot, 0, ghost_list::marks::instead_of_bytes),
              period_(static_cast<std::uint32_t>(std::clamp<std::size_t>(capacity.slots, shortest, 1u << 24))),
              next_(std::min(period_, sample)) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            apply_touches();
            known& one = entries_[index_of(slot)];
            one = {.key = newcomer.key, .bytes = static_cast<float>(std::max<std::size_t>(newcomer.bytes, 1))};
            if (const auto ghost = ghosts_.take(newcomer.key)) {
                const std::uint32_t c = ghost->mark & class_bits;
                one.uses = static_cast<std::uint8_t>(c == 0 ? 1 : (1u << (c - 1)) + 1); // the least of the class
                ages_.use(c, clock_ - (ghost->mark & ~class_bits));
            }
            use(slot);
        }

        void touch(slot_id slot) {
            touches_.add(slot, queues_, entries_, [this](slot_id one) { use_again(one); });
        }

        void on_released(slot_id slot) {
            apply_touches();
            queues_.move_to_front(slot, class_of(entries_[index_of(slot)]));
        }

        void erase(slot_id slot) {
            apply_touches();
            queues_.remove(slot);
        }

        void evict(slot_id slot) {
            apply_touches();
            const known& one = entries_[index_of(slot)];
            ghosts_.push(one.key, {.mark = (one.used & ~class_bits) | class_of(one)});
            erase(slot);
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            apply_touches();
            const auto found = least(is_evictable, patience);
            return found ? found : least(is_evictable, queues_.slots());
        }

    private:
        static constexpr std::uint32_t classes = 5, class_bits = 7;
        static constexpr std::uint32_t shortest = 64; // uses between two learnings
        static constexpr std::uint32_t sample = 2000; // uses after which records fade by a tenth, in a small cache
        static constexpr std::size_t patience = 64;   // entries checked at each end of a list before it is skipped
        struct known {
            std::uint64_t key = 0;
            float bytes = 1.0f;
            std::uint32_t used = 0; // time of the last use
            std::uint8_t uses = 0;  // up to 255
        };

        // Classes: 1, 2, 3 to 4, 5 to 8 and more uses.
        [[nodiscard]] static std::uint32_t class_of(const known& one) noexcept {
            return std::min<std::uint32_t>(static_cast<std::uint32_t>(std::bit_width(std::uint32_t{one.uses} - 1u)),
                                           classes - 1);
        }

        void apply_touches() {
            touches_.apply_all([this](slot_id slot) { use_again(slot); });
        }

        void use_again(slot_id slot) {
            const known& one = entries_[index_of(slot)];
            ages_.use(class_of(one), clock_ - one.used);
            queues_.remove(slot);
            use(slot);
        }

        void use(slot_id slot) {
            known& one = entries_[index_of(slot)];
            one.uses = static_cast<std::uint8_t>(std::min(one.uses + 1, 255));
            one.used = ++clock_;
            ages_.begin(class_of(one));
            queues_.push_front(slot, class_of(one));
            if (++since_learned_ >= next_) { // soon at first, then once per as many uses as slots
                ages_.learn(1.0 - 0.1 * static_cast<double>(since_learned_) / std::max(period_, sample));
                next_ = std::min(2 * next_, period_);
                since_learned_ = 0;
            }
        }

        // The entry of least value among the oldest and the newest evictable entry of each list. The newest wins where
        // all entries return at one age, as in a loop. An entry that is not evictable keeps its place: a parent is
        // evicted after its children.
        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> least(IsEvictable&& is_evictable, std::size_t most_asked) {
            std::optional<slot_id> found;
            double worth = 0.0;
            std::uint32_t age = 0;
            const auto consider_end = [&](std::uint32_t c, slot_id slot, auto next) {
                for (std::size_t asked = 0; !queues_.ends(slot); slot = next(slot), ++asked) {
                    if (asked == most_asked)
                        return;
                    if (!is_evictable(slot))
                        continue;
                    const known& one = entries_[index_of(slot)];
                    const std::uint32_t own_age = clock_ - one.used;
                    const double own = ages_.worth(c, own_age) / static_cast<double>(one.bytes);
                    if (!found || own < worth || (own == worth && own_age > age)) {
                        found = slot;
                        worth = own;
                        age = own_age;
                    }
                    return;
                }
            };
            for (std::uint32_t c = 0; c < classes; ++c) {
                if (queues_.empty(c))
                    continue;
                consider_end(c, queues_.back(c), [this](slot_id slot) { return queues_.newer(slot); });
                consider_end(c, queues_.front(c), [this](slot_id slot) { return queues_.older(slot); });
            }
            return found;
        }

        slot_lists queues_;
        std::vector<known> entries_;
        touch_buffer touches_;
        ghost_list ghosts_;
        age_histogram<classes> ages_;
        std::uint32_t clock_ = 0; // uses of all entries; wraps
        std::uint32_t since_learned_ = 0;
        std::uint32_t period_;
        std::uint32_t next_;
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<learned_reuse>);

}}} // namespace kvcache::eviction
