// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/eviction/concept.hpp>

#include <vector>

namespace kvcache {

/// The least recently used entry leaves first. Admission and every touch move an entry to the front of one queue; the
/// victim is the last that may leave. One that may not leave is in use now, so it moves to the front as it is met.
///
///     touch, admit -> [ newest ... oldest ] -> victim
struct lru {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 8 bytes a slot.
class lru::state {
public:
    explicit state(std::size_t slots) : links_(slots + 1), end_(static_cast<std::uint32_t>(slots)) {
        links_[end_] = {end_, end_};
    }

    void admit(slot_id slot, const entry&) {
        expects(!present(slot), "an entry is admitted once");
        link_front(index_of(slot));
    }

    void touch(slot_id slot) {
        expects(present(slot), "a touched entry was admitted");
        unlink(index_of(slot));
        link_front(index_of(slot));
    }

    void settle(slot_id slot) { touch(slot); }

    void erase(slot_id slot) {
        expects(present(slot), "an erased entry was admitted");
        unlink(index_of(slot));
        links_[index_of(slot)] = {};
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        for (std::uint32_t met = 0; met < end_ && links_[end_].previous != end_; ++met) {
            const std::uint32_t oldest = links_[end_].previous;
            if (may_leave(slot_id{oldest}))
                return slot_id{oldest};
            touch(slot_id{oldest});
        }
        return std::nullopt;
    }

private:
    static constexpr std::uint32_t nowhere = 0xffffffffu;
    struct link {
        std::uint32_t previous = nowhere;
        std::uint32_t next = nowhere;
    };

    [[nodiscard]] bool present(slot_id slot) const { return links_[index_of(slot)].next != nowhere; }

    void link_front(std::uint32_t slot) {
        links_[slot] = {end_, links_[end_].next};
        links_[links_[end_].next].previous = slot;
        links_[end_].next = slot;
    }

    void unlink(std::uint32_t slot) {
        links_[links_[slot].previous].next = links_[slot].next;
        links_[links_[slot].next].previous = links_[slot].previous;
    }

    std::vector<link> links_; // a ring through the sentinel at the end
    std::uint32_t end_;
};

inline lru::state lru::open(eviction_room room) const {
    return state{room.slots};
}

static_assert(eviction_policy<lru>);

} // namespace kvcache
