// SPDX-License-Identifier: MIT
#include <kvcache/eviction/never.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("never has no victim") {
    auto state = kv::eviction::never{}.open({.slots = 2});
    state.admit(kv::slot_id{0}, {});
    state.touch(kv::slot_id{0});
    CHECK_FALSE(state.victim([](kv::slot_id) { return true; }));
    state.erase(kv::slot_id{0});
    CHECK_FALSE(state.victim([](kv::slot_id) { return true; }));
}
