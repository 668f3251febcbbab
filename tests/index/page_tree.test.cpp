// SPDX-License-Identifier: MIT
#include <kvcache/index/hash_chain.hpp>
#include <kvcache/index/page_tree.hpp>
#include <kvcache/index/radix.hpp>
#include <kvcache/testing/index_conformance.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("two sets of pages stay ordered while pages come and go") {
    constexpr std::uint32_t pages = 200;
    kv::index::sibling_order order(pages);
    kv::index::sibling_order::set sets[2];
    std::set<std::uint32_t> truth[2];
    kv::testing::detail::choices choose(5);
    const auto in_front_of = [](std::uint32_t limit) { return [=](std::uint32_t page) { return page < limit; }; };
    for (int round = 0; round < 5000; ++round) {
        const auto page = static_cast<std::uint32_t>(choose.below(pages));
        const std::size_t which = page % 2;
        if (truth[which].insert(page).second) {
            order.insert(sets[which], page, in_front_of(page));
        } else {
            truth[which].erase(page);
            order.erase(sets[which], page, in_front_of(page));
        }
        for (std::size_t i = 0; i < 2; ++i) {
            const auto limit = static_cast<std::uint32_t>(choose.below(pages));
            const auto found = order.around(sets[i], in_front_of(limit));
            const auto after = truth[i].lower_bound(limit);
            REQUIRE(found.after == (after == truth[i].end() ? kv::index::sibling_order::none : *after));
            REQUIRE(found.before == (after == truth[i].begin() ? kv::index::sibling_order::none : *std::prev(after)));
            REQUIRE(sets[i].empty() == truth[i].empty());
        }
    }
}

namespace {

// The tokens with these numbers, and zeros up to `filled`.
[[nodiscard]] std::vector<kv::token_id> run_of(std::initializer_list<int> numbers, std::size_t filled = 0) {
    std::vector<kv::token_id> run;
    for (const int n : numbers)
        run.push_back(kv::token_id{n});
    run.resize(std::max(run.size(), filled), kv::token_id{0});
    return run;
}

using outcome = kv::insertion::outcome;

/// An index that is only the tree.
struct bare {
    using role = kv::index_role;
    struct state {
        kv::index::page_tree tree;

        [[nodiscard]] kv::index_match match(std::span<const kv::token_id> tokens) const {
            kv::index_match found;
            do
                tokens = tokens.subspan(found.pages.empty() ? 0 : tree.page_tokens());
            while (tree.step(found, tokens.first(std::min(tokens.size(), tree.page_tokens()))));
            return found;
        }
        kv::insertion insert(std::optional<kv::page_id> parent, std::span<const kv::token_id> tokens,
                             kv::page_id page) {
            return tree.insert(parent, tokens, page);
        }
        void erase(kv::page_id page) { tree.erase(page); }
        [[nodiscard]] bool contains(kv::page_id page) const { return tree.contains(page); }
        [[nodiscard]] bool leaf(kv::page_id page) const { return tree.leaf(page); }
        [[nodiscard]] std::optional<kv::page_id> parent(kv::page_id page) const { return tree.parent(page); }
        [[nodiscard]] std::span<const kv::token_id> run(kv::page_id page) const { return tree.run(page); }
    };
    [[nodiscard]] state open(kv::page_shape shape, std::size_t pages) const {
        return {kv::index::page_tree(shape, pages)};
    }
};

} // namespace

TEST_CASE("a tree that is walked page by page is an index") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        INFO("seed " << seed);
        CHECK(kv::testing::index_conformance(bare{}, seed) == kv::testing::violations{});
    }
}

TEST_CASE("a page continues its parent alone, with its own run alone") {
    kv::index::page_tree tree({.tokens = 32}, 4);
    (void)tree.insert({}, run_of({1}, 32), kv::page_id{0});
    (void)tree.insert({}, run_of({2}, 32), kv::page_id{1});
    (void)tree.insert(kv::page_id{0}, run_of({3}, 32), kv::page_id{2});
    CHECK(tree.continues(2, 0, run_of({3}, 32)));
    CHECK_FALSE(tree.continues(2, 1, run_of({3}, 32)));
    CHECK_FALSE(tree.continues(2, kv::index::page_tree::none, run_of({3}, 32)));
    CHECK_FALSE(tree.continues(2, 0, run_of({4}, 32)));
    auto late = run_of({3}, 32);
    late.back() = kv::token_id{9};
    CHECK_FALSE(tree.continues(2, 0, late));
    CHECK(tree.continues(0, kv::index::page_tree::none, run_of({1}, 32)));
}

TEST_CASE("a page of a tree is full when its run is a page long") {
    kv::index::page_tree tree({.tokens = 16}, 2);
    CHECK_FALSE(tree.full(kv::page_id{0}));
    (void)tree.insert({}, run_of({1}, 15), kv::page_id{0});
    CHECK_FALSE(tree.full(kv::page_id{0}));
    (void)tree.insert({}, run_of({1}, 16), kv::page_id{0});
    CHECK(tree.full(kv::page_id{0}));
    tree.erase(kv::page_id{0});
    CHECK_FALSE(tree.full(kv::page_id{0}));
}

TEMPLATE_TEST_CASE("a partial page gives way to a longer form of its run", "", kv::index::radix,
                   kv::index::hash_chain) {
    auto index = TestType{}.open({.tokens = 16}, 8);
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

TEMPLATE_TEST_CASE("a caller's mistakes with an index are contract violations", "", kv::index::radix,
                   kv::index::hash_chain) {
    auto index = TestType{}.open({.tokens = 16}, 8);
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

TEMPLATE_TEST_CASE("a hash of few bits makes candidates, never wrong matches", "", kv::index::radix,
                   kv::index::hash_chain) {
    for (const unsigned bits : {0u, 1u, 4u, 16u, 33u, 36u})
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
            INFO(bits << " bits, seed " << seed);
            CHECK(kv::testing::index_conformance(TestType{.hash_bits = bits}, seed) == kv::testing::violations{});
        }
}

TEMPLATE_TEST_CASE("a match ends at any token of a prompt of many pages", "", kv::index::radix, kv::index::hash_chain) {
    constexpr std::size_t pages = 19, length = 16;
    for (const unsigned bits : {64u, 2u}) {
        auto index = TestType{.hash_bits = bits}.open({.tokens = length}, pages);
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

TEMPLATE_TEST_CASE("a page that has left the index is found no more", "", kv::index::radix, kv::index::hash_chain) {
    auto index = TestType{}.open({.tokens = 16}, 2);
    const kv::page_id a{0}, b{1};
    (void)index.insert({}, run_of({1}, 16), a);
    index.erase(a);
    CHECK(index.match(run_of({1}, 16)).pages.empty());
    (void)index.insert({}, run_of({1}, 16), b);
    (void)index.insert({}, run_of({2}, 16), a);
    CHECK(index.match(run_of({1}, 16)).pages == std::vector{b});
    CHECK(index.match(run_of({2}, 16)).pages == std::vector{a});
}
