// SPDX-License-Identifier: MIT
#include <kvcache/eviction/expiring.hpp>
#include <kvcache/eviction/fifo.hpp>
#include <kvcache/eviction/lru.hpp>

#include <chrono>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct shown_time {
    const std::uint64_t* now = nullptr;
    std::uint64_t operator()() const { return *now; }
};

struct plain_lru {
    queue order;
    void admit(kv::slot_id slot, const kv::eviction_entry&) { order.push_front(slot); }
    void touch(kv::slot_id slot) { to_front(order, slot); }
    void on_released(kv::slot_id slot) { to_front(order, slot); }
    void erase(kv::slot_id slot) { order.remove(slot); }
    std::optional<kv::slot_id> victim(const auto& is_evictable) { return oldest(order, is_evictable); }
};

constexpr auto anyone = [](kv::slot_id) { return true; };

} // namespace

TEST_CASE("an expired entry is evicted before any other") {
    std::uint64_t now = 0xffffffffull - 20; // the low 32 bits wrap soon
    auto state = kv::eviction::expiring<kv::eviction::fifo, shown_time>{
        .time_to_live = std::chrono::milliseconds(100),
        .clock = {
            &now}}.open({.slots = 3, .bytes = 3});
    for (std::uint32_t slot = 0; slot < 3; ++slot)
        state.admit(kv::slot_id{slot}, {.key = slot, .bytes = 1});
    now += 60;
    state.touch(kv::slot_id{0});
    CHECK_FALSE(state.expired(anyone));
    CHECK(state.victim(anyone) == kv::slot_id{0}); // fifo's victim
    now += 50;
    CHECK(state.victim(anyone) == kv::slot_id{1});
    const auto not_1 = [](kv::slot_id slot) { return slot != kv::slot_id{1}; };
    CHECK(state.victim(not_1) == kv::slot_id{2});
    CHECK(state.expired(anyone) == kv::slot_id{2}); // 1 is in use: its time restarts
    kv::evict(state, kv::slot_id{2});
    CHECK_FALSE(state.expired(anyone));
    now += 100;
    CHECK(state.expired(anyone) == kv::slot_id{0});
    state.on_released(kv::slot_id{0});
    CHECK(state.expired(anyone) == kv::slot_id{1});
    state.erase(kv::slot_id{1});
    state.erase(kv::slot_id{0});
    CHECK_FALSE(state.victim(anyone));
}

TEST_CASE("while nothing expires the policy inside decides") {
    std::uint64_t now = 0;
    same_victims(kv::eviction::expiring<kv::eviction::lru, shown_time>{.clock = {&now}},
                 [](kv::eviction_capacity) { return plain_lru{}; });
}

TEST_CASE("a time to live is a duration of any unit, and is not negative") {
    std::uint64_t now = 0;
    auto state =
        kv::eviction::expiring<kv::eviction::fifo, shown_time>{.time_to_live = std::chrono::seconds(2), .clock = {&now}}
            .open({.slots = 1, .bytes = 1});
    state.admit(kv::slot_id{0}, {.key = 0, .bytes = 1});
    now = 1999;
    CHECK_FALSE(state.expired(anyone));
    now = 2000;
    CHECK(state.expired(anyone) == kv::slot_id{0});
    for (const auto bad : {std::chrono::milliseconds(-1), std::chrono::milliseconds(std::int64_t{1} << 31)})
        CHECK_THROWS_AS((kv::eviction::expiring<>{.time_to_live = bad}.open({.slots = 1})), kv::contract_violation);
}
