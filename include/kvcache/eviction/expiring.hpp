// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <chrono>
#include <concepts>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Milliseconds of the machine's steady clock.
struct steady_milliseconds {
    [[nodiscard]] std::uint64_t operator()() const noexcept {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    }
};

/// A clock in milliseconds that never goes back.
template <class C>
concept millisecond_clock = requires(const C clock) {
    { clock() } -> std::convertible_to<std::uint64_t>;
};

/// Evicts entries that were not used for a time first; if there are none, another policy decides. `expired` lets a
/// caller remove expired entries before space is needed. An entry that is not evictable is in use: its time restarts
/// when the search meets it.
///
///     touch, release, admit -> [ newest ... oldest ] -> expired: victim
///                              [ Inner             ] -> else its victim
///
///     expiring<s3_fifo>{.time_to_live = std::chrono::minutes(5)}
template <eviction_policy Inner = lru, millisecond_clock Clock = steady_milliseconds>
struct expiring {
    using role = eviction_role;
    Inner inner = {};
    std::chrono::milliseconds time_to_live = std::chrono::minutes(5); ///< As public prompt caches do; below 2^31 ms.
    Clock clock = {};
    class state;
    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

/// Cost: that of Inner, plus O(1) each. Inner's bytes a slot, plus 12.
template <eviction_policy Inner, millisecond_clock Clock>
class expiring<Inner, Clock>::state {
public:
    state(const expiring& policy, eviction_capacity capacity)
        : inner_(policy.inner.open(capacity)),
          clock_(policy.clock),
          queue_(capacity.slots, 1),
          times_(capacity.slots),
          lifetime_(static_cast<std::uint32_t>(policy.time_to_live.count())) {
        require(policy.time_to_live.count() >= 0 && policy.time_to_live.count() < std::int64_t{1} << 31,
                "a time to live is from 0 to 2^31 - 1 milliseconds");
    }

    void on_miss(const eviction_entry& newcomer) { kvcache::on_miss(inner_, newcomer); }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        inner_.admit(slot, newcomer);
        queue_.push_front(slot, 0);
        times_[index_of(slot)] = now();
    }

    void touch(slot_id slot) {
        inner_.touch(slot);
        renew(slot);
    }

    void on_released(slot_id slot) {
        kvcache::on_released(inner_, slot);
        renew(slot);
    }

    void on_child_added(slot_id slot) { kvcache::on_child_added(inner_, slot); }
    void on_last_child_removed(slot_id slot) { kvcache::on_last_child_removed(inner_, slot); }

    void erase(slot_id slot) {
        inner_.erase(slot);
        queue_.remove(slot);
    }

    void evict(slot_id slot) {
        kvcache::evict(inner_, slot);
        queue_.remove(slot);
    }

    /// The next evictable entry whose time has expired.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> expired(IsEvictable&& is_evictable) {
        for (std::size_t met = 0; met < queue_.slots() && !queue_.empty(0); ++met) {
            const slot_id oldest = queue_.back(0);
            if (now() - times_[index_of(oldest)] < lifetime_)
                return std::nullopt;
            if (is_evictable(oldest))
                return oldest;
            renew(oldest);
        }
        return std::nullopt;
    }

    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        if (const auto found = expired(is_evictable))
            return found;
        return inner_.victim(is_evictable);
    }

private:
    // The clock wraps; the age of an entry does not while it is below 49 days.
    [[nodiscard]] std::uint32_t now() const { return static_cast<std::uint32_t>(clock_()); }

    void renew(slot_id slot) {
        queue_.move_to_front(slot, 0);
        times_[index_of(slot)] = now();
    }

    opened_by<Inner, eviction_capacity> inner_;
    Clock clock_;
    slot_lists queue_;                 // in order of last use
    std::vector<std::uint32_t> times_; // of last use
    std::uint32_t lifetime_;
};

static_assert(eviction_policy<expiring<lru>>);

}}} // namespace kvcache::eviction
