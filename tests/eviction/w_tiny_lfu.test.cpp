// SPDX-License-Identifier: MIT
#include <kvcache/eviction/w_tiny_lfu.hpp>

#include "model.hpp"

using namespace eviction_model;

TEST_CASE("a frequency sketch counts a key, and never too little") {
    kv::eviction::frequency_sketch sketch(1000);
    for (std::uint64_t key = 0; key < 100; ++key)
        for (std::uint64_t use = 0; use < key % 20; ++use)
            sketch.add(key);
    std::size_t exact = 0;
    for (std::uint64_t key = 0; key < 100; ++key) {
        const auto uses = static_cast<std::uint32_t>(key % 20 < 16 ? key % 20 : 16);
        REQUIRE(sketch.uses(key) >= uses);
        exact += sketch.uses(key) == uses;
    }
    CHECK(exact >= 95);
}

TEST_CASE("after ten uses a slot what was counted is halved") {
    kv::eviction::frequency_sketch sketch(100);
    for (int use = 0; use < 9; ++use)
        sketch.add(7);
    CHECK(sketch.uses(7) == 9);
    for (std::uint64_t key = 1000; key < 1990; ++key)
        sketch.add(key);
    CHECK(sketch.uses(7) == 9);
    sketch.add(5000);
    CHECK(sketch.uses(7) == 4); // eight in the sketch, halved; the doorkeeper is clear
    CHECK(sketch.uses(5000) == 0);
}

TEST_CASE("few of many keys are taken for others") {
    kv::eviction::frequency_sketch sketch(10'000);
    for (std::uint64_t key = 0; key < 10'000; ++key)
        sketch.add(key);
    std::size_t strangers = 0;
    for (std::uint64_t key = 1'000'000; key < 1'010'000; ++key)
        strangers += sketch.uses(key) > 0;
    CHECK(strangers < 500);
}

namespace {

struct plain_w_tiny_lfu {
    std::size_t room, window_share;
    kv::eviction::frequency_sketch sketch;
    queue window = {}, probation = {}, guarded = {};
    std::map<kv::slot_id, kv::eviction_entry> entries = {};
    std::size_t to_come = 0;

    [[nodiscard]] std::size_t bytes(const queue& slots) const {
        std::size_t sum = 0;
        for (const kv::slot_id slot : slots)
            sum += entries.at(slot).bytes;
        return sum;
    }
    void on_miss(const kv::eviction_entry& newcomer) { to_come = newcomer.bytes; }
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        to_come = newcomer.bytes;
        entries[slot] = newcomer;
        window.push_front(slot);
        sketch.add(newcomer.key);
    }
    void touch(kv::slot_id slot) {
        sketch.add(entries[slot].key);
        if (in(window, slot))
            return to_front(window, slot);
        probation.remove(slot);
        to_front(guarded, slot);
        while (bytes(guarded) > (room - window_share) / 5 * 4) {
            probation.push_front(guarded.back());
            guarded.pop_back();
        }
    }
    void on_released(kv::slot_id slot) {
        for (queue* slots : {&window, &probation, &guarded})
            if (in(*slots, slot))
                to_front(*slots, slot);
    }
    void erase(kv::slot_id slot) {
        for (queue* slots : {&window, &probation, &guarded})
            slots->remove(slot);
    }
    std::optional<kv::slot_id> of_main(const auto& is_evictable) {
        const auto found = oldest(probation, is_evictable);
        return found ? found : oldest(guarded, is_evictable);
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        while (bytes(window) + to_come > window_share) {
            const auto candidate = oldest(window, is_evictable);
            if (!candidate)
                break;
            const bool fits = bytes(probation) + bytes(guarded) + entries[*candidate].bytes <= room - window_share;
            const auto other = fits ? std::nullopt : of_main(is_evictable);
            if (!fits && (!other || sketch.uses(entries[*candidate].key) <= sketch.uses(entries[*other].key)))
                return candidate;
            window.remove(*candidate);
            probation.push_front(*candidate);
            if (!fits)
                return other;
        }
        const auto found = of_main(is_evictable);
        return found ? found : oldest(window, is_evictable);
    }
};

} // namespace

TEST_CASE("w_tiny_lfu is three lists and a sketch") {
    for (const double window : {0.01, 0.3})
        same_victims(kv::eviction::w_tiny_lfu{.window = window, .adaptive = false},
                     [&](kv::eviction_capacity capacity) {
                         return plain_w_tiny_lfu{capacity.bytes,
                                                 static_cast<std::size_t>(static_cast<double>(capacity.bytes) * window),
                                                 kv::eviction::frequency_sketch(capacity.slots)};
                     });
    says_what_a_caller_does_wrong(kv::eviction::w_tiny_lfu{});
}

TEST_CASE("the window of w_tiny_lfu grows where what is new is what is used") {
    constexpr std::size_t slots = 100;
    auto state = kv::eviction::w_tiny_lfu{}.open({.slots = slots, .bytes = slots});
    const std::size_t first = state.window_share();
    std::map<std::uint64_t, kv::slot_id> present;
    std::vector<std::uint64_t> keys(slots);
    std::uint32_t used = 0;
    for (std::uint64_t round = 0; round < 60'000; ++round) {
        const std::uint64_t key = round % 2 == 0 ? round : round < 60 ? 0 : round - 61; // each used twice, soon
        if (const auto at = present.find(key); at != present.end()) {
            state.touch(at->second);
            continue;
        }
        kv::slot_id slot{used};
        if (used == slots) {
            slot = *state.victim([](kv::slot_id) { return true; });
            kv::evict(state, slot);
            present.erase(keys[index_of(slot)]);
        } else {
            ++used;
        }
        state.admit(slot, {.key = key, .bytes = 1});
        keys[index_of(slot)] = key;
        present[key] = slot;
    }
    CHECK(state.window_share() > 10 * first);
}
