// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/clock.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct plain_clock {
    int most;
    queue order = {};
    std::map<kv::slot_id, int> counts = {};
    std::set<kv::slot_id> settled = {};

    void admit(kv::slot_id slot, const kv::eviction_entry&) {
        order.push_front(slot);
        counts[slot] = 0;
        settled.erase(slot);
    }
    void touch(kv::slot_id slot) { counts[slot] = std::min(counts[slot] + 1, most); }
    void on_released(kv::slot_id slot) {
        if (settled.insert(slot).second)
            to_front(order, slot);
    }
    void erase(kv::slot_id slot) { order.remove(slot); }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        const bool any = kvcache::ranges::any_of(order, is_evictable);
        for (std::size_t turn = 0; any || turn < 12u * static_cast<unsigned>(most + 1); ++turn) {
            if (order.empty())
                return std::nullopt;
            const kv::slot_id slot = order.back();
            if (counts[slot] == 0 && is_evictable(slot))
                return slot;
            counts[slot] = std::max(counts[slot] - 1, 0);
            to_front(order, slot);
        }
        return std::nullopt;
    }
};

} // namespace

TEST_CASE("clock gives an entry another round for each use that it counts") {
    for (const std::uint32_t bits : {1u, 2u})
        same_victims(kv::eviction::clock{.bits = bits},
                     [&](kv::eviction_capacity) { return plain_clock{(1 << bits) - 1}; });
    says_what_a_caller_does_wrong(kv::eviction::clock{});
    CHECK_THROWS_AS((kv::eviction::clock{.bits = 0}.open({.slots = 1})), kv::contract_violation);
}
