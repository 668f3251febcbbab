// SPDX-License-Identifier: MIT
#include <kvcache/index/radix.hpp>
#include <kvcache/testing/index_conformance.hpp>

#include <cstddef>
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

TEST_CASE("a partial page gives way to a longer form of its run") {
    auto index = kv::index::radix{}.open({.tokens = 16}, 8);
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

TEST_CASE("a caller's mistakes with the radix index are contract violations") {
    auto index = kv::index::radix{}.open({.tokens = 16}, 8);
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

TEST_CASE("with a hash of few bits the tree finds what hints do not") {
    for (const unsigned bits : {0u, 1u, 4u, 33u, 36u})
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
            INFO(bits << " bits, seed " << seed);
            CHECK(kv::testing::index_conformance(kv::index::radix{.hash_bits = bits}, seed) ==
                  kv::testing::violations{});
        }
}

TEST_CASE("a match ends at any token of a prompt of many pages") {
    constexpr std::size_t pages = 19, length = 16;
    for (const unsigned bits : {64u, 2u}) {
        auto index = kv::index::radix{.hash_bits = bits}.open({.tokens = length}, pages);
        std::vector<kv::token_id> prompt;
        for (int i = 0; i < static_cast<int>(pages * length); ++i)
            prompt.push_back(kv::token_id{i % 7}); // equal pages after different prefixes
        for (std::uint32_t page = 0; page < pages; ++page)
            (void)index.insert(page > 0 ? std::optional(kv::page_id{page - 1}) : std::nullopt,
                               std::span(prompt).subspan(page * length, length), kv::page_id{page});
        for (std::size_t i = 0; i < prompt.size(); ++i) {
            auto other = prompt;
            other[i] = kv::token_id{9};
            const auto differs = index.match(other);
            CHECK(differs.tokens == i);
            CHECK(differs.pages.size() == (i + length - 1) / length);
            CHECK(differs.end == kv::match_end::different);
            CHECK(differs.stored == prompt[i]);
            CHECK(index.match(std::span(prompt).first(i)).tokens == i);
            CHECK(index.match(std::span(prompt).first(i)).end == kv::match_end::complete);
        }
        prompt.resize(prompt.size() + 3 * length);
        CHECK(index.match(prompt).tokens == pages * length);
        CHECK(index.match(prompt).end == kv::match_end::unknown);
    }
}

TEST_CASE("a page that has left the radix index is hinted at no more") {
    auto index = kv::index::radix{}.open({.tokens = 16}, 2);
    const kv::page_id a{0}, b{1};
    (void)index.insert({}, run_of({1}, 16), a);
    index.erase(a);
    CHECK(index.match(run_of({1}, 16)).pages.empty());
    (void)index.insert({}, run_of({1}, 16), b);
    (void)index.insert({}, run_of({2}, 16), a);
    CHECK(index.match(run_of({1}, 16)).pages == std::vector{b});
    CHECK(index.match(run_of({2}, 16)).pages == std::vector{a});
}
