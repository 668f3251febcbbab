// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/cost_aware.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

constexpr auto anyone = [](kv::slot_id) { return true; };

// Every entry is compared with every other. The probability of a hit is counted from outcomes by class of uses.
struct plain_cost_aware {
    struct ranked {
        double rank = 0.0;
        int turn = 0;
        int uses = 1;
        double saving = 0.0; // seconds a byte
        bool has_children = false;
    };
    struct outcomes {
        double hits = 1.0, evictions = 1.0;
    };
    std::map<kv::slot_id, ranked> entries;
    std::map<int, outcomes> classes; // by the fewest uses of the class
    double clock = 0.0;
    int turn = 0;

    [[nodiscard]] outcomes& of(int uses) {
        int fewest = 128;
        while (fewest > uses)
            fewest /= 2;
        return classes[uses == 3 ? 3 : fewest];
    }
    void note(int uses, bool hit) {
        outcomes& seen = of(uses);
        ++(hit ? seen.hits : seen.evictions);
        if (seen.hits + seen.evictions > 4096.0)
            seen = {seen.hits / 2, std::max(seen.evictions / 2, 1.0)};
    }
    [[nodiscard]] double worth(const ranked& one) {
        const outcomes& seen = of(one.uses);
        return seen.hits / (seen.hits + seen.evictions) * one.saving;
    }
    void rank(ranked& one, double since) {
        one.rank = since + worth(one);
        one.turn = ++turn;
    }
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        entries[slot] = {.saving = static_cast<float>(newcomer.cost / static_cast<double>(newcomer.bytes))};
        rank(entries[slot], clock);
    }
    void touch(kv::slot_id slot) {
        ranked& one = entries[slot];
        note(one.uses, true);
        one.uses = std::min(one.uses + 1, 255);
        rank(one, clock);
    }
    void on_released(kv::slot_id slot) { rank(entries[slot], clock); }
    void on_child_added(kv::slot_id slot) { entries[slot].has_children = true; }
    void on_last_child_removed(kv::slot_id slot) { entries[slot].has_children = false; }
    void erase(kv::slot_id slot) { entries.erase(slot); }
    void evict(kv::slot_id slot) {
        note(entries[slot].uses, false);
        clock = entries[slot].rank;
        entries.erase(slot);
    }
    [[nodiscard]] std::optional<kv::slot_id> lowest(const auto& among) {
        std::optional<kv::slot_id> found;
        for (const auto& [slot, one] : entries)
            if (!one.has_children && among(slot) &&
                (!found || std::pair(one.rank, one.turn) < std::pair(entries[*found].rank, entries[*found].turn)))
                found = slot;
        return found;
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        const auto candidates =
            kvcache::ranges::count_if(entries, [](const auto& one) { return !one.second.has_children; });
        for (auto met = candidates; met > 0; --met) { // an entry in use is ranked anew
            const auto slot = lowest(anyone);
            if (is_evictable(*slot))
                return slot;
            rank(entries[*slot], entries[*slot].rank);
        }
        return lowest(is_evictable);
    }
};

} // namespace

TEST_CASE("of entries used alike, cost_aware keeps those that save most for their bytes") {
    auto state = kv::eviction::cost_aware{}.open({.slots = 3});
    state.admit(kv::slot_id{0}, {.key = 0, .bytes = 8, .cost = 4.0});
    state.admit(kv::slot_id{1}, {.key = 1, .bytes = 2, .cost = 3.0});
    state.admit(kv::slot_id{2}, {.key = 2, .bytes = 8, .cost = 5.0});
    for (const std::uint32_t next : {0u, 2u, 1u}) {
        const auto found = state.victim(anyone);
        REQUIRE(found == kv::slot_id{next});
        state.evict(*found);
    }
}

TEST_CASE("depth makes nothing dearer for cost_aware") {
    auto state = kv::eviction::cost_aware{}.open({.slots = 2});
    state.admit(kv::slot_id{0}, {.key = 0, .bytes = 8, .cost = 1.0, .depth = 1000, .length = 2000});
    state.admit(kv::slot_id{1}, {.key = 1, .bytes = 8, .cost = 1.0});
    CHECK(state.victim(anyone) == kv::slot_id{0}); // the first admitted
}

TEST_CASE("cost_aware learns how likely a hit is after so many uses") {
    auto state = kv::eviction::cost_aware{}.open({.slots = 4});
    CHECK(state.worth().chance_of_hit(1) == Approx(0.5));
    for (std::uint64_t key = 0; key < 1000; ++key) { // one in four is used again, and then twice more
        state.admit(kv::slot_id{0}, {.key = key, .bytes = 1, .cost = 1.0});
        for (int use = 0; use < 3 && key % 4 == 0; ++use)
            state.touch(kv::slot_id{0});
        state.evict(kv::slot_id{0});
    }
    CHECK(state.worth().chance_of_hit(1) == Approx(0.25).epsilon(0.01));
    CHECK(state.worth().chance_of_hit(2) > 0.99);
    // A new entry is evicted before one that was used twice, although its hit would save three times as much.
    state.admit(kv::slot_id{0}, {.key = 5000, .bytes = 1, .cost = 1.0});
    state.touch(kv::slot_id{0});
    state.admit(kv::slot_id{1}, {.key = 5001, .bytes = 1, .cost = 3.0});
    CHECK(state.victim(anyone) == kv::slot_id{1});
}

TEST_CASE("an unused entry ages in cost_aware, whatever it saves") {
    auto state = kv::eviction::cost_aware{}.open({.slots = 3});
    state.admit(kv::slot_id{0}, {.key = 0, .bytes = 1, .cost = 50.0});
    std::uint64_t key = 1;
    for (; key < 100'000; ++key) {
        state.admit(kv::slot_id{1}, {.key = key, .bytes = 1, .cost = 1.0});
        if (key % 2 == 0)
            state.touch(kv::slot_id{1});
        const auto found = state.victim(anyone);
        REQUIRE(found);
        state.evict(*found);
        if (found == kv::slot_id{0})
            break;
    }
    CHECK(key < 1000);
    says_what_a_caller_does_wrong(kv::eviction::cost_aware{});
}

TEST_CASE("cost_aware has the victims of its rule in plain code") {
    same_victims(kv::eviction::cost_aware{}, [](kv::eviction_capacity) { return plain_cost_aware{}; },
                 {.children = true});
    INFO("long enough for outcomes to decay");
    same_victims(kv::eviction::cost_aware{}, [](kv::eviction_capacity) { return plain_cost_aware{}; },
                 {.seeds = 2, .rounds = 60'000, .children = true});
}
