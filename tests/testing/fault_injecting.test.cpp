// SPDX-License-Identifier: MIT
#include <kvcache/testing/fault_injecting.hpp>
#include <kvcache/testing/role_conformance.hpp>
#include <kvcache/testing/tier_conformance.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using faults = kv::testing::fault_injecting_tier<>;

template <class State>
std::vector<std::byte> read(State& state, std::uint64_t number) {
    std::vector<std::byte> made;
    REQUIRE(state.read(kv::testing::detail::tier_name(number).name,
                       [&](std::span<const std::byte> bytes) { made.assign(bytes.begin(), bytes.end()); }));
    return made;
}

const auto put = [](auto& state, std::uint64_t number) { return kv::testing::detail::put_record(state, number); };
const auto record = [](std::uint64_t number) { return kv::testing::detail::tier_record(number); };

} // namespace

TEST_CASE("every n-th page is refused") {
    for (const std::uint64_t every : {0u, 1u, 2u, 5u}) {
        auto state = kv::testing::fault_injecting_storage<>{.every = every}.open(20, 64);
        for (std::uint32_t call = 1; call <= 20; ++call)
            CHECK(state.acquire(kv::page_id{call - 1}) == (every == 0 || call % every != 0));
        CHECK(kv::testing::storage_conformance(kv::testing::fault_injecting_storage<>{.every = every}, 1).empty());
    }
}

TEST_CASE("a tier without scheduled faults passes the conformance tests") {
    CHECK(kv::testing::tier_conformance(faults{}, 1) == kv::testing::violations{});
}

TEST_CASE("every fault strikes when it was scheduled, and at no other time") {
    auto flipping = faults{.flip = 2}.open();
    REQUIRE((put(flipping, 1) && put(flipping, 2)));
    CHECK(read(flipping, 1) == record(1));
    auto bits = read(flipping, 1);
    REQUIRE(bits.size() == record(1).size());
    int different = 0;
    for (std::size_t i = 0; i < bits.size(); ++i)
        different += std::popcount(std::to_integer<unsigned>(bits[i] ^ record(1)[i]));
    CHECK(different == 1);

    auto cutting = faults{.cut = 1, .seed = 3}.open();
    REQUIRE(put(cutting, 1));
    const auto part = read(cutting, 1);
    CHECK(part.size() < record(1).size());

    auto confusing = faults{.confuse = 2}.open();
    REQUIRE((put(confusing, 1) && put(confusing, 2)));
    CHECK(read(confusing, 1) == record(1));
    CHECK(read(confusing, 2) == record(1));
    CHECK(read(confusing, 2) == record(2));

    auto losing = faults{.lose = 1}.open();
    CHECK(put(losing, 1));
    CHECK_FALSE(losing.contains(kv::testing::detail::tier_name(1).name));

    auto repeating = faults{.repeat = 1}.open();
    CHECK(put(repeating, 1));
    CHECK(read(repeating, 1) == record(1));
    CHECK(repeating.counts().records == 1);

    auto failing = faults{.fail = 3}.open();
    CHECK((put(failing, 1) && put(failing, 2)));
    CHECK_FALSE(put(failing, 3));
    CHECK(put(failing, 3));

    auto gone = faults{.disconnect = 2}.open();
    CHECK(put(gone, 1));
    CHECK_FALSE(put(gone, 2));
    CHECK_FALSE(gone.flush());
    CHECK(kv::testing::detail::read_record(gone, 1) == kv::testing::detail::tier_answer::failed);

    auto late = faults{.delay = 1}.open();
    REQUIRE(put(late, 1));
    CHECK(read(late, 1) == record(1));
}
