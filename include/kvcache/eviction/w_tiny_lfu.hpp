// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Approximate recent use counts of keys, at most 16. The first use of a key sets bits of the doorkeeper, a Bloom
/// filter; later uses count in a count-min sketch of four rows of 4-bit counters. After ten uses a slot all counts are
/// halved and the doorkeeper is cleared.
///
/// Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions on Storage
/// 2017.
///
/// Cost: O(1) each, amortized. At most 8 + 2 bytes a slot, and at least 40 in total.
class frequency_sketch {
public:
    explicit frequency_sketch(std::size_t slots)
        : words_(std::max<std::size_t>(std::bit_ceil(slots) / 2, 4)),
          door_(std::max<std::size_t>(std::bit_ceil(slots) / 8, 1)),
          period_(std::max<std::size_t>(10 * slots, 40)) {}

    /// Records a use of the key.
    void add(std::uint64_t key) noexcept {
        const std::uint64_t hash = mix64(key);
        if (!pass_door(hash))
            for (std::uint32_t row = 0; row < 4; ++row)
                if (const place at = counter(hash, row); (words_[at.word] >> at.bit & 15) < 15)
                    words_[at.word] += std::uint64_t{1} << at.bit;
        if (++uses_ == period_)
            age();
    }

    /// The estimated uses of a key: at least the number since the last halving, capped at 16.
    [[nodiscard]] std::uint32_t uses(std::uint64_t key) const noexcept {
        const std::uint64_t hash = mix64(key);
        std::uint32_t least = 15;
        for (std::uint32_t row = 0; row < 4; ++row) {
            const place at = counter(hash, row);
            least = std::min(least, static_cast<std::uint32_t>(words_[at.word] >> at.bit & 15));
        }
        return least + (behind_door(hash) ? 1 : 0);
    }

private:
    struct place {
        std::size_t word;
        std::uint32_t bit;
    };

    // Each word holds four counters of each row. A row's hash is the high half of a product with the row's own odd
    // number.
    [[nodiscard]] place counter(std::uint64_t hash, std::uint32_t row) const noexcept {
        const std::uint64_t own = (hash | 1) * (0x9e3779b97f4a7c15ull + 2ull * row * 0xd1b54a32d192ed03ull);
        return {static_cast<std::size_t>(own >> 34 & (words_.size() - 1)),
                16 * row + 4 * static_cast<std::uint32_t>(own >> 32 & 3)};
    }

    [[nodiscard]] std::size_t door_bits() const noexcept { return 64 * door_.size(); }
    [[nodiscard]] std::size_t door_bit(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>(hash & (door_bits() - 1));
    }
    [[nodiscard]] bool behind_door(std::uint64_t hash) const noexcept {
        const auto a = door_bit(hash), b = door_bit(hash >> 32);
        return (door_[a / 64] >> a % 64 & 1) != 0 && (door_[b / 64] >> b % 64 & 1) != 0;
    }
    // Sets the key's bits. Returns whether this is the key's first use, as far as the Bloom filter can tell.
    [[nodiscard]] bool pass_door(std::uint64_t hash) noexcept {
        if (behind_door(hash))
            return false;
        const auto a = door_bit(hash), b = door_bit(hash >> 32);
        door_[a / 64] |= std::uint64_t{1} << a % 64;
        door_[b / 64] |= std::uint64_t{1} << b % 64;
        return true;
    }

    void age() noexcept {
        for (std::uint64_t& word : words_)
            word = word >> 1 & 0x7777777777777777ull;
        ranges::fill(door_, 0);
        uses_ = 0;
    }

    std::vector<std::uint64_t> words_; // 16 counters each
    std::vector<std::uint64_t> door_;
    std::size_t period_;
    std::size_t uses_ = 0;
};

/// W-TinyLFU. New entries join a window, an LRU list. The oldest entry of the window enters the main part only if it
/// was recently used more often than the main part's victim. The main part is a segmented LRU: a touch moves an entry
/// to the protected segment, which has at most four fifths of the main part. The size of the window adapts by hill
/// climbing on the hit ratio.
///
///     admit -> [ window ] -> oldest --> used more than? --> [ probation ] <-> [ protected ]
///                               '- no: victim   yes: oldest of probation is the victim
///
/// An entry that is not evictable moves to the front of its list. Einziger, Eytan, Friedman and Manes, "Adaptive
/// software cache management", Middleware 2018.
struct w_tiny_lfu {
    using role = eviction_role;
    double window = 0.01; ///< Initial share of the capacity for the window.
    bool adaptive = true; ///< Whether the window's share adapts.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. At most 32 bytes a slot:
    /// 22 and the sketch.
    class state {
    public:
        state(const w_tiny_lfu& policy, eviction_capacity capacity)
            : queues_(capacity.slots, 3),
              keys_(capacity.slots),
              sizes_(capacity.slots),
              places_(capacity.slots),
              sketch_(capacity.slots),
              capacity_(capacity.bytes),
              window_share_(static_cast<std::size_t>(static_cast<double>(capacity.bytes) * policy.window)),
              step_(static_cast<double>(capacity.bytes) / 16),
              period_(policy.adaptive ? std::max<std::size_t>(10 * capacity.slots, 40) : 0),
              grain_(std::bit_width(capacity.bytes) > 32 ? static_cast<int>(std::bit_width(capacity.bytes)) - 32 : 0) {}

        void on_miss(const eviction_entry& newcomer) { bytes_to_come_ = newcomer.bytes; }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            bytes_to_come_ = newcomer.bytes;
            keys_[index_of(slot)] = newcomer.key;
            sizes_[index_of(slot)] =
                static_cast<std::uint32_t>((newcomer.bytes + (std::size_t{1} << grain_) - 1) >> grain_);
            insert(slot, window);
            count_use(newcomer.key, false);
        }

        void touch(slot_id slot) {
            if (places_[index_of(slot)] == window) {
                queues_.move_to_front(slot, window);
            } else {
                erase(slot);
                insert(slot, guarded);
                while (bytes_[guarded] > (capacity_ - window_share_) / 5 * 4) {
                    const slot_id oldest = queues_.back(guarded);
                    erase(oldest);
                    insert(oldest, probation);
                }
            }
            count_use(keys_[index_of(slot)], true);
        }

        void on_released(slot_id slot) { queues_.move_to_front(slot, places_[index_of(slot)]); }

        void erase(slot_id slot) {
            queues_.remove(slot);
            bytes_[places_[index_of(slot)]] -= size(slot);
        }

        /// The current share of the window in bytes.
        [[nodiscard]] std::size_t window_share() const noexcept { return window_share_; }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            while (bytes_[window] + bytes_to_come_ > window_share_) {
                const auto candidate = queues_.oldest(window, is_evictable, patience);
                if (!candidate)
                    break;
                if (bytes_[probation] + bytes_[guarded] + size(*candidate) > capacity_ - window_share_) {
                    const auto other = oldest_of_main(is_evictable, patience);
                    if (!other || sketch_.uses(keys_[index_of(*candidate)]) <= sketch_.uses(keys_[index_of(*other)]))
                        return candidate;
                    to_main(*candidate);
                    return other;
                }
                to_main(*candidate);
            }
            if (const auto found = oldest_of_main(is_evictable, patience))
                return found;
            if (const auto found = queues_.oldest(window, is_evictable))
                return found;
            return oldest_of_main(is_evictable, queues_.slots());
        }

    private:
        static constexpr std::uint8_t window = 0, probation = 1, guarded = 2; // queues
        static constexpr std::size_t patience = 64; // entries checked in a list before it is skipped

        [[nodiscard]] std::size_t size(slot_id slot) const { return std::size_t{sizes_[index_of(slot)]} << grain_; }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> oldest_of_main(IsEvictable&& is_evictable, std::size_t most) {
            if (const auto found = queues_.oldest(probation, is_evictable, most))
                return found;
            return queues_.oldest(guarded, is_evictable, most);
        }

        void insert(slot_id slot, std::uint8_t queue) {
            queues_.push_front(slot, queue);
            places_[index_of(slot)] = queue;
            bytes_[queue] += size(slot);
        }

        void to_main(slot_id slot) {
            erase(slot);
            insert(slot, probation);
        }

        // After each period the window grows or shrinks as before if the hit ratio rose, and reverses otherwise. The
        // step shrinks by 2 % each time and is reset when the hit ratio changes by at least 0.05, a sign of a new
        // workload (Caffeine's constants).
        void count_use(std::uint64_t key, bool hit) {
            sketch_.add(key);
            hits_ += hit;
            if (period_ == 0 || ++uses_ < period_)
                return;
            const double rate = static_cast<double>(hits_) / static_cast<double>(uses_);
            const double change = rate - last_rate_;
            if (change < 0)
                step_ = -step_;
            const double bytes =
                std::clamp(static_cast<double>(window_share_) + step_, 0.0, 0.8 * static_cast<double>(capacity_));
            window_share_ = static_cast<std::size_t>(bytes);
            const double whole = static_cast<double>(capacity_) / 16;
            step_ = change >= 0.05 || change <= -0.05 ? (step_ < 0 ? -whole : whole) : 0.98 * step_;
            last_rate_ = rate;
            uses_ = hits_ = 0;
        }

        slot_lists queues_;
        std::vector<std::uint64_t> keys_;
        std::vector<std::uint32_t> sizes_; // in grains
        std::vector<std::uint8_t> places_;
        frequency_sketch sketch_;
        std::size_t capacity_;
        std::size_t window_share_;
        double step_; // change of the window's share, in bytes
        std::size_t period_;
        int grain_;
        std::size_t bytes_[3] = {};
        std::size_t bytes_to_come_ = 0;
        std::size_t uses_ = 0, hits_ = 0; // in this period
        double last_rate_ = 0.0;
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<w_tiny_lfu>);

}}} // namespace kvcache::eviction
