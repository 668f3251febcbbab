// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/slot_queues.hpp>

#include <chrono>
#include <concepts>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Milliseconds of the machine's steady clock.
struct steady_milliseconds {
    [[nodiscard]] std::uint64_t operator()() const noexcept {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    }
};

/// Says what time it is, in milliseconds that never go back.
template <class C>
concept millisecond_clock = requires(const C clock) {
    { clock() } -> std::convertible_to<std::uint64_t>;
};

/// What nobody has used for a time leaves first; while there is no such entry, another policy decides. Who wants to
/// take expired entries away before their room is needed asks for them. One that may not leave is in use now: its time
/// starts anew as it is met.
///
///     touch, settle, admit -> [ newest ... oldest ] -> expired: victim
///                             [ Inner             ] -> else its victim
///
///     expiring<s3_fifo>{.milliseconds = 300'000}
template <eviction_policy Inner = lru, millisecond_clock Clock = steady_milliseconds>
struct expiring {
    using role = eviction_role;
    Inner inner = {};
    std::uint32_t milliseconds = 300'000; ///< Five minutes, as prompt caches of public services do; below 2^31.
    Clock clock = {};
    class state;
    [[nodiscard]] state open(eviction_room room) const { return state{*this, room}; }
};

/// Cost: that of Inner, and O(1) each. Inner's bytes a slot, and 12.
template <eviction_policy Inner, millisecond_clock Clock>
class expiring<Inner, Clock>::state {
public:
    state(const expiring& policy, eviction_room room)
        : inner_(policy.inner.open(room)),
          clock_(policy.clock),
          queue_(room.slots, 1),
          times_(room.slots),
          lifetime_(policy.milliseconds) {}

    void announce(const entry& newcomer) { kvcache::announce(inner_, newcomer); }

    void admit(slot_id slot, const entry& newcomer) {
        inner_.admit(slot, newcomer);
        queue_.push_front(slot, 0);
        times_[index_of(slot)] = now();
    }

    void touch(slot_id slot) {
        inner_.touch(slot);
        renew(slot);
    }

    void settle(slot_id slot) {
        kvcache::settle(inner_, slot);
        renew(slot);
    }

    void cover(slot_id slot) { kvcache::cover(inner_, slot); }
    void uncover(slot_id slot) { kvcache::uncover(inner_, slot); }

    void erase(slot_id slot) {
        inner_.erase(slot);
        queue_.remove(slot);
    }

    void evict(slot_id slot) {
        kvcache::evict(inner_, slot);
        queue_.remove(slot);
    }

    /// The next that may leave because its time is over.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> expired(MayLeave&& may_leave) {
        for (std::size_t met = 0; met < queue_.slots() && !queue_.empty(0); ++met) {
            const slot_id oldest = queue_.back(0);
            if (now() - times_[index_of(oldest)] < lifetime_)
                return std::nullopt;
            if (may_leave(oldest))
                return oldest;
            renew(oldest);
        }
        return std::nullopt;
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        if (const auto found = expired(may_leave))
            return found;
        return inner_.victim(may_leave);
    }

private:
    // Times may wrap: an entry's age does not, while it is below 49 days.
    [[nodiscard]] std::uint32_t now() const { return static_cast<std::uint32_t>(clock_()); }

    void renew(slot_id slot) {
        queue_.move_to_front(slot, 0);
        times_[index_of(slot)] = now();
    }

    decltype(std::declval<const Inner&>().open(eviction_room{})) inner_;
    Clock clock_;
    slot_queues queue_;                // in the order of use
    std::vector<std::uint32_t> times_; // of use
    std::uint32_t lifetime_;
};

static_assert(eviction_policy<expiring<lru>>);

} // namespace kvcache
