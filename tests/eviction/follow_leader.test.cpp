// SPDX-License-Identifier: MIT
#include <kvcache/adapters/replay/object_replay.hpp>
#include <kvcache/adapters/replay/prefix_replay.hpp>
#include <kvcache/eviction/arc.hpp>
#include <kvcache/eviction/follow_leader.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/s3_fifo.hpp>
#include <kvcache/testing/eviction_laws.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model.hpp"

using namespace eviction_model;

namespace {

constexpr auto anyone = [](kv::slot_id) { return true; };

template <class Policy>
double hits_of_prompts(const Policy& policy, std::size_t capacity,
                       const std::vector<std::vector<std::uint64_t>>& prompts) {
    kv::prefix_replay<Policy> replay(policy, capacity, 1, {});
    for (const auto& prompt : prompts)
        replay.run({.input_tokens = 16 * prompt.size(), .block_tokens = 16, .blocks = prompt});
    return static_cast<double>(replay.counts().hits);
}

template <class Policy>
double hits_of_objects(const Policy& policy, std::size_t capacity, const std::vector<std::uint64_t>& keys) {
    kv::object_replay<Policy> replay(policy, capacity, capacity);
    for (const std::uint64_t key : keys)
        replay.run({.key = key});
    return static_cast<double>(replay.counts().hits);
}

/// For entries that stand alone.
struct follow_objects {
    using role = kv::eviction_role;
    kv::follow_leader policy = {};
    [[nodiscard]] kv::follow_leader::state open(kv::eviction_room room) const {
        room.chained = false;
        return policy.open(room);
    }
};

// A key of which small ones are often asked for.
std::uint64_t often_small(kv::testing::detail::choices& choose, double most) {
    const double u = static_cast<double>(1 + choose.below(1'000'000)) / 1e6;
    return static_cast<std::uint64_t>(std::pow(most, u));
}

std::vector<std::uint64_t> chain(std::uint64_t name, std::size_t length) {
    std::vector<std::uint64_t> blocks(length);
    std::iota(blocks.begin(), blocks.end(), name << 32);
    return blocks;
}

} // namespace

TEST_CASE("in a small cache follow_leader is lru") {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::uint32_t slots = 12;
        auto state = kv::follow_leader{}.open({.slots = slots, .bytes = slots, .chained = seed % 2 == 0});
        queue order;
        for (int round = 0; round < 3000; ++round) {
            const kv::slot_id slot{static_cast<std::uint32_t>(choose.below(slots))};
            if (!in(order, slot)) {
                state.admit(slot, {.key = choose.below(1000), .bytes = 1});
                order.push_front(slot);
            } else if (choose.one_in(4)) {
                state.erase(slot);
                order.remove(slot);
            } else {
                state.touch(slot);
                to_front(order, slot);
            }
            const auto victim = state.victim(anyone);
            CHECK(victim == (order.empty() ? std::nullopt : std::optional(order.back())));
        }
    }
    says_what_a_caller_does_wrong(kv::follow_leader{});
    says_what_a_caller_does_wrong(follow_objects{});
}

TEST_CASE("follow_leader keeps the laws also where policies are compared") {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
        CHECK(kv::testing::eviction_laws(kv::follow_leader{.contest_from = 4}, seed).empty());
        CHECK(kv::testing::eviction_laws(follow_objects{{.contest_from = 4}}, seed).empty());
    }
    CHECK(kv::testing::eviction_laws(kv::follow_leader{.ghosts_a_slot = 0}, 1).empty());
}

TEST_CASE("on objects follow_leader is near the best of lru, arc and s3_fifo") {
    kv::testing::detail::choices choose(5);
    std::vector<std::uint64_t> scanned, alone, loop, change;
    for (std::uint64_t i = 0; i < 60'000; ++i) {
        scanned.push_back(i / 1000 % 2 == 0 ? often_small(choose, 20'000.0) : 1'000'000 + i);
        alone.push_back(choose.one_in(2) ? often_small(choose, 20'000.0) : 1'000'000 + i);
        loop.push_back(choose.one_in(2) ? often_small(choose, 2000.0) : 1'000'000 + i % 2000);
        change.push_back(i / 20'000 * 100'000 + often_small(choose, 20'000.0));
    }
    for (const auto& keys : {scanned, alone, loop, change}) {
        const double best = std::max({hits_of_objects(kv::lru{}, 1000, keys), hits_of_objects(kv::arc{}, 1000, keys),
                                      hits_of_objects(kv::s3_fifo{}, 1000, keys)});
        CHECK(hits_of_objects(kv::follow_leader{}, 1000, keys) >= 0.98 * best);
    }
}

TEST_CASE("on conversations follow_leader is never far behind the best of lru, arc and s3_fifo") {
    kv::testing::detail::choices choose(1);
    std::vector<std::vector<std::uint64_t>> live, prompts;
    for (std::uint64_t n = 0; n < 4000; ++n) {
        if (live.size() < 200 || choose.one_in(8))
            live.push_back(chain(n + 1, 1 + choose.below(20)));
        auto& talk = live[live.size() - 1 - choose.below(std::min<std::size_t>(live.size(), 200))];
        prompts.push_back(talk);
        const auto more = chain(1000000 + n, 1 + choose.below(4));
        talk.insert(talk.end(), more.begin(), more.end());
    }
    for (const std::size_t capacity : {1000u, 3000u}) {
        INFO("capacity " << capacity);
        const double best =
            std::max({hits_of_prompts(kv::lru{}, capacity, prompts), hits_of_prompts(kv::arc{}, capacity, prompts),
                      hits_of_prompts(kv::s3_fifo{}, capacity, prompts)});
        CHECK(hits_of_prompts(kv::follow_leader{}, capacity, prompts) >= 0.98 * best);
    }
}
