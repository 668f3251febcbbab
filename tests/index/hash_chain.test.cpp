// SPDX-License-Identifier: MIT
#include <kvcache/index/hash_chain.hpp>
#include <kvcache/testing/index_conformance.hpp>

#include <cstdint>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

[[nodiscard]] std::vector<kv::token_id> run_of(std::initializer_list<int> numbers, std::size_t filled = 0) {
    std::vector<kv::token_id> run;
    for (const int n : numbers)
        run.push_back(kv::token_id{n});
    while (run.size() < filled)
        run.push_back(kv::token_id{0});
    return run;
}

using outcome = kv::insertion::outcome;

} // namespace

TEST_CASE("in a hash chain a partial page gives way to a longer form of its run") {
    auto index = kv::index::hash_chain{}.open({.tokens = 16}, 8);
    const kv::page_id a{0}, b{1}, c{2};
    CHECK(index.insert({}, run_of({1, 2}), a).what == outcome::inserted);
    const auto longer = index.insert({}, run_of({1, 2, 3}), b);
    CHECK(longer.what == outcome::inserted);
    CHECK(longer.other == a);
    CHECK_FALSE(index.contains(a));
    const auto shorter = index.insert({}, run_of({1}), c);
    CHECK(shorter.what == outcome::covered);
    CHECK(shorter.other == b);
    CHECK(index.insert({}, run_of({1, 2, 3, 4}), b).what == outcome::extended);
    CHECK(index.insert({}, run_of({1, 2}), b).what == outcome::covered);
    CHECK(index.match(run_of({1, 2, 3, 9})).stored == kv::token_id{4});
}

TEST_CASE("a caller's mistakes with the hash chain are contract violations") {
    auto index = kv::index::hash_chain{}.open({.tokens = 16}, 8);
    const kv::page_id a{0}, b{1};
    CHECK_THROWS_AS(index.insert({}, {}, a), kv::contract_violation);
    CHECK_THROWS_AS(index.insert({}, run_of({}, 17), a), kv::contract_violation);
    CHECK_THROWS_AS(index.insert(a, run_of({1}), b), kv::contract_violation);
    (void)index.insert({}, run_of({1}, 16), a);
    (void)index.insert(a, run_of({2}), b);
    CHECK_THROWS_AS(index.erase(a), kv::contract_violation);
    index.erase(b);
    index.erase(a);
    CHECK_THROWS_AS(index.erase(a), kv::contract_violation);
}

TEST_CASE("a hash of few bits makes candidates, never wrong matches") {
    for (const unsigned bits : {0u, 1u, 4u, 16u})
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
            INFO(bits << " bits, seed " << seed);
            CHECK(kv::testing::index_conformance(kv::index::hash_chain{.hash_bits = bits}, seed) ==
                  kv::testing::violations{});
        }
}
