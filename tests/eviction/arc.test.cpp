// SPDX-License-Identifier: MIT
#include <kvcache/eviction/arc.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

// The paper's cases I to IV, in bytes.
struct plain_arc {
    double capacity;
    std::size_t slots; // also the maximum number of ghosts of each list
    queue once = {}, again = {};
    ghosts once_left = {}, again_left = {};
    std::map<kv::slot_id, kv::eviction_entry> entries = {};
    double target = 0.0;
    double to_come = 0.0;
    int returns = 0; // by a ghost of the first list, or of the second

    [[nodiscard]] double bytes(const queue& some) const {
        double sum = 0.0;
        for (const kv::slot_id slot : some)
            sum += static_cast<double>(entries.at(slot).bytes);
        return sum;
    }
    void on_miss(const kv::eviction_entry& newcomer) {
        const auto one = static_cast<double>(once_left.bytes()), two = static_cast<double>(again_left.bytes());
        to_come = static_cast<double>(newcomer.bytes);
        returns = once_left.take(newcomer.key) ? 1 : again_left.take(newcomer.key) ? 2 : 0;
        if (returns == 1)
            target = std::min(capacity, target + to_come * std::max(two / one, 1.0));
        if (returns == 2)
            target = std::max(0.0, target - to_come * std::max(one / two, 1.0));
    }
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        entries[slot] = newcomer;
        (returns == 0 ? once : again).push_front(slot);
        returns = 0;
    }
    void touch(kv::slot_id slot) {
        once.remove(slot);
        to_front(again, slot);
    }
    void on_released(kv::slot_id slot) { to_front(in(once, slot) ? once : again, slot); }
    void erase(kv::slot_id slot) {
        once.remove(slot);
        again.remove(slot);
    }
    [[nodiscard]] bool full() const {
        return bytes(once) + static_cast<double>(once_left.bytes()) + to_come > capacity;
    }
    void evict(kv::slot_id slot) {
        bool remembered = true;
        if (returns == 0 && full()) {
            if (!once_left.keys.empty())
                once_left.keys.pop_back();
            else
                remembered = !in(once, slot);
        } else if (returns == 0) {
            const double all = bytes(once) + bytes(again) + static_cast<double>(once_left.bytes() + again_left.bytes());
            if (all >= 2 * capacity && !again_left.keys.empty())
                again_left.keys.pop_back();
        }
        auto& left = (in(once, slot) ? once_left : again_left).keys;
        if (remembered)
            left.emplace_front(entries[slot].key, entries[slot].bytes);
        if (left.size() > slots)
            left.pop_back();
        erase(slot);
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        const bool only_once = returns == 0 && full() && once_left.keys.empty();
        const bool first = !once.empty() && (only_once || again.empty() || bytes(once) > target ||
                                             (bytes(once) == target && returns == 2));
        if (const auto found = oldest(first ? once : again, is_evictable))
            return found;
        return oldest(first ? again : once, is_evictable);
    }
};

} // namespace

TEST_CASE("arc is two lists, their ghosts and a target") {
    same_victims(kv::eviction::arc{}, [](kv::eviction_capacity capacity) {
        return plain_arc{static_cast<double>(capacity.bytes), capacity.slots};
    });
    says_what_a_caller_does_wrong(kv::eviction::arc{});
}
