// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/sieve.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct plain_sieve {
    queue order;
    std::set<kv::slot_id> used, settled;
    std::optional<kv::slot_id> hand; // nullopt: at the oldest

    [[nodiscard]] std::optional<kv::slot_id> newer(kv::slot_id slot) const {
        const auto at = kvcache::ranges::find(order, slot);
        return at == order.begin() ? std::nullopt : std::optional(*std::prev(at));
    }
    void admit(kv::slot_id slot, const kv::eviction_entry&) {
        order.push_front(slot);
        used.erase(slot);
        settled.erase(slot);
    }
    void touch(kv::slot_id slot) { used.insert(slot); }
    void on_released(kv::slot_id slot) {
        if (!settled.insert(slot).second)
            return;
        if (hand == slot)
            hand = newer(slot);
        to_front(order, slot);
    }
    void erase(kv::slot_id slot) {
        if (hand == slot)
            hand = newer(slot);
        order.remove(slot);
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        for (std::size_t turn = 0; turn < 24 && !order.empty(); ++turn) {
            const kv::slot_id here = hand.value_or(order.back());
            hand = here;
            if (!used.contains(here) && is_evictable(here))
                return here;
            used.erase(here);
            hand = newer(here);
        }
        return std::nullopt;
    }
};

} // namespace

TEST_CASE("sieve is a hand over a list that nothing moves in") {
    same_victims(kv::eviction::sieve{}, [](kv::eviction_capacity) { return plain_sieve{}; });
    says_what_a_caller_does_wrong(kv::eviction::sieve{});
}
