// SPDX-License-Identifier: MIT
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/gdsf.hpp>

#include <optional>
#include <string>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// The rule that a call breaks.
std::string broken_by(const auto& call) {
    try {
        call();
    } catch (const kv::contract_violation& rule) {
        return rule.what();
    }
    return {};
}

} // namespace

TEST_CASE("a checked eviction state names the rule that its caller breaks") {
    auto state = kv::open_checked(kv::eviction::gdsf{}, {.slots = 2});
    const kv::slot_id slot{1};
    CHECK(broken_by([&] { state.touch(slot); }) == "a touched entry was admitted");
    CHECK(broken_by([&] { kv::on_released(state, slot); }) == "a released entry was admitted");
    CHECK(broken_by([&] { kv::on_child_added(state, slot); }) == "an entry that gains a child was admitted");
    CHECK(broken_by([&] { kv::on_last_child_removed(state, slot); }) ==
          "an entry that lost its last child was admitted");
    CHECK(broken_by([&] { state.erase(slot); }) == "an erased entry was admitted");
    CHECK(broken_by([&] { kv::evict(state, slot); }) == "an evicted entry was admitted");
    state.admit(slot, {.bytes = 1, .cost = 1.0});
    CHECK(broken_by([&] { state.admit(slot, {}); }) == "an entry is admitted once");
    kv::evict(state, slot);
    CHECK(broken_by([&] { state.touch(slot); }) == "a touched entry was admitted");
    state.admit(slot, {.bytes = 1, .cost = 1.0});
    state.erase(slot);
    CHECK(broken_by([&] { state.admit(slot, {.bytes = 1, .cost = 1.0}); }).empty());
    CHECK(state.victim([](kv::slot_id) { return true; }) == slot);
}
