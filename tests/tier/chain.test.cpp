// SPDX-License-Identifier: MIT
#include <kvcache/testing/fault_injecting.hpp>
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier/all.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace conformance = kvcache::testing::detail;

namespace {

using answer = conformance::tier_answer;
using two = kv::tier::chain<>;

std::vector<kv::sha256_digest> names(std::uint64_t count) {
    std::vector<kv::sha256_digest> made;
    for (std::uint64_t n = 0; n < count; ++n)
        made.push_back(conformance::tier_name(n).name);
    return made;
}

// Returns where a record is: 1 in the first tier, 2 in the second, 3 in both.
template <class State>
int place(State& chain, std::uint64_t number) {
    const auto name = conformance::tier_name(number).name;
    return chain.first().contains(name) + 2 * chain.second().contains(name);
}

constexpr auto never = std::chrono::hours(1);

} // namespace

TEST_CASE("a chain of tiers is a tier, however it writes and whatever its tiers have room for") {
    for (const auto write :
         {kv::tier::chain_write::through, kv::tier::chain_write::back, kv::tier::chain_write::second_touch})
        for (std::uint64_t seed = 0; seed < 2; ++seed) {
            CHECK(kv::testing::tier_conformance(two{.write = write, .delay = std::chrono::milliseconds(1)}, seed)
                      .empty());
            CHECK(kv::testing::tier_conformance(two{.first = {.bytes = 20000}, .write = write, .waiting = 3}, seed)
                      .empty());
            CHECK(kv::testing::tier_conformance(two{.first = {.records = 0}, .second = {.records = 5}, .write = write},
                                                seed)
                      .empty());
        }
    CHECK(kv::testing::tier_conformance(kv::tier::chain{kv::tier::memory<>{.records = 2},
                                                        kv::tier::chain{kv::tier::memory<>{}, kv::tier::memory<>{}}},
                                        1)
              .empty());
    CHECK(kv::testing::tier_conformance(
              kv::tier::chain{kv::tier::none{}, kv::tier::memory<>{}, kv::tier::chain_write::second_touch}, 1)
              .empty());
}

TEST_CASE("a record is in both tiers at once, after a delay, or at the next request") {
    auto through = two{}.open();
    REQUIRE(conformance::put_record(through, 1));
    CHECK(place(through, 1) == 3);

    auto back = two{.write = kv::tier::chain_write::back, .delay = never}.open();
    REQUIRE(conformance::put_record(back, 1));
    CHECK(conformance::read_record(back, 1) == answer::right);
    CHECK(place(back, 1) == 1);
    REQUIRE(back.flush());
    CHECK(place(back, 1) == 3);
    CHECK(conformance::read_record(back.second(), 1) == answer::right);

    auto touched = two{.write = kv::tier::chain_write::second_touch}.open();
    REQUIRE((conformance::put_record(touched, 1) && conformance::put_record(touched, 2)));
    REQUIRE(touched.flush());
    CHECK(place(touched, 1) == 1);
    CHECK(conformance::read_record(touched, 1) == answer::right);
    REQUIRE(touched.flush());
    CHECK(place(touched, 1) == 3);
    CHECK(place(touched, 2) == 1);
    CHECK(conformance::read_record(touched, 1) == answer::right);
    REQUIRE(touched.flush());
    CHECK(touched.second().counts().written == 1);
}

TEST_CASE("what waits for the second tier is carried there at the end") {
    kv::tier_counts counts;
    struct watched {
        using role = kv::tier_role;
        kv::tier_counts* counts = nullptr;
        struct state : kv::tier::memory<>::state {
            state(const kv::tier::memory<>& how, kv::tier_counts* to) : kv::tier::memory<>::state(how), out(to) {}
            state(state&& other) noexcept
                : kv::tier::memory<>::state(std::move(other)), out(std::exchange(other.out, nullptr)) {}
            state& operator=(state&&) = default;
            ~state() {
                if (out != nullptr)
                    *out = kv::tier::memory<>::state::counts();
            }
            kv::tier_counts* out;
        };
        state open() const { return {kv::tier::memory<>{}, counts}; }
    };
    {
        auto chain =
            kv::tier::chain<kv::tier::memory<>, watched>{
                .second = {&counts}, .write = kv::tier::chain_write::back, .delay = never, .waiting = 5}
                .open();
        for (std::uint64_t n = 0; n < 8; ++n)
            REQUIRE(conformance::put_record(chain, n));
        CHECK(chain.counts().dropped == 3);
    }
    CHECK(counts.written == 5);
}

TEST_CASE("a run is read wherever its records are, and the first tier gets what it had not") {
    auto chain = two{}.open();
    for (std::uint64_t n = 0; n < 12; ++n)
        REQUIRE(conformance::put_record(chain, n));
    for (const std::uint64_t n : {2u, 3u, 7u})
        REQUIRE(chain.first().erase(conformance::tier_name(n).name));
    for (const std::uint64_t n : {1u, 9u})
        REQUIRE(chain.second().erase(conformance::tier_name(n).name));
    const auto all = names(20);
    CHECK(chain.count_prefix_hits(all) == 12);
    std::uint64_t next = 0;
    const auto given = chain.read_run(all, [&](std::size_t i, std::span<const std::byte> bytes) {
        CHECK(i == next++);
        CHECK(std::ranges::equal(bytes, conformance::tier_record(i)));
        return i != 10;
    });
    REQUIRE(given);
    CHECK(*given == 11);
    CHECK(next == 11);
    CHECK(place(chain, 7) == 3);
    CHECK(place(chain, 9) == 1);
}

TEST_CASE("a tier that fails is passed over") {
    auto broken_first =
        kv::tier::chain{kv::testing::fault_injecting_tier<>{.disconnect = 1}, kv::tier::memory<>{}}.open();
    CHECK_FALSE(conformance::put_record(broken_first, 1));
    CHECK(conformance::read_record(broken_first, 1) == answer::right);
    auto broken_second =
        kv::tier::chain{kv::tier::memory<>{}, kv::testing::fault_injecting_tier<>{.disconnect = 1}}.open();
    CHECK_FALSE(conformance::put_record(broken_second, 1));
    CHECK(conformance::read_record(broken_second, 1) == answer::right);
    CHECK(conformance::read_record(broken_second, 2) == answer::miss);
}
