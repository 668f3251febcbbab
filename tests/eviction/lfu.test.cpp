// SPDX-License-Identifier: MIT
#include <kvcache/eviction/lfu.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct plain_lfu {
    std::size_t most_ghosts;
    std::map<int, queue> by_count = {};
    std::map<kv::slot_id, int> counts = {};
    std::map<kv::slot_id, std::uint64_t> keys = {};
    ghosts left = {}; // with their counts

    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        keys[slot] = newcomer.key;
        counts[slot] = 1;
        for (const auto& [key, count] : left.keys)
            if (key == newcomer.key)
                counts[slot] = static_cast<int>(count) + 1;
        left.take(newcomer.key);
        by_count[counts[slot]].push_front(slot);
    }
    void touch(kv::slot_id slot) {
        by_count[counts[slot]].remove(slot);
        counts[slot] = std::min(counts[slot] + 1, 255);
        by_count[counts[slot]].push_front(slot);
    }
    void on_released(kv::slot_id slot) { to_front(by_count[counts[slot]], slot); }
    void erase(kv::slot_id slot) { by_count[counts[slot]].remove(slot); }
    void evict(kv::slot_id slot) {
        erase(slot);
        left.keys.emplace_front(keys[slot], static_cast<std::size_t>(counts[slot]));
        if (left.keys.size() > most_ghosts)
            left.keys.pop_back();
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        for (auto& [count, slots] : by_count)
            if (const auto found = oldest(slots, is_evictable))
                return found;
        return std::nullopt;
    }
};

} // namespace

TEST_CASE("lfu is a list for each count, and remembers as many entries as configured") {
    same_victims(kv::eviction::lfu{}, [](kv::eviction_capacity) { return plain_lfu{0}; });
    same_victims(kv::eviction::lfu{.history = 1.5},
                 [](kv::eviction_capacity capacity) { return plain_lfu{capacity.slots * 3 / 2}; });
    says_what_a_caller_does_wrong(kv::eviction::lfu{});
}

TEST_CASE("lfu counts to 255") {
    auto state = kv::eviction::lfu{}.open({.slots = 2});
    for (std::uint32_t slot = 0; slot < 2; ++slot) {
        state.admit(kv::slot_id{slot}, {.key = slot});
        for (int use = 0; use < 300 + 100 * static_cast<int>(slot); ++use)
            state.touch(kv::slot_id{slot});
    }
    state.touch(kv::slot_id{0});
    CHECK(state.victim([](kv::slot_id) { return true; }) == kv::slot_id{1});
}
