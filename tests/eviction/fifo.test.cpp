// SPDX-License-Identifier: MIT
#include <kvcache/eviction/fifo.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct plain_fifo {
    queue order;
    std::set<kv::slot_id> settled;

    void admit(kv::slot_id slot, const kv::eviction_entry&) {
        order.push_front(slot);
        settled.erase(slot);
    }
    void touch(kv::slot_id) {}
    void on_released(kv::slot_id slot) {
        if (settled.insert(slot).second)
            to_front(order, slot);
    }
    void erase(kv::slot_id slot) { order.remove(slot); }
    std::optional<kv::slot_id> victim(const auto& is_evictable) { return oldest(order, is_evictable); }
};

} // namespace

TEST_CASE("fifo is a list in the order of arrival") {
    same_victims(kv::eviction::fifo{}, [](kv::eviction_capacity) { return plain_fifo{}; });
    says_what_a_caller_does_wrong(kv::eviction::fifo{});
}

TEST_CASE("a chain that is released tail first is evicted from fifo tail first") {
    auto state = kv::eviction::fifo{}.open({.slots = 3});
    for (std::uint32_t slot = 0; slot < 3; ++slot)
        state.admit(kv::slot_id{slot}, {});
    for (std::uint32_t slot = 3; slot > 0; --slot)
        state.on_released(kv::slot_id{slot - 1});
    CHECK(state.victim([](kv::slot_id) { return true; }) == kv::slot_id{2});
}
