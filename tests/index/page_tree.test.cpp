// SPDX-License-Identifier: MIT
#include <kvcache/index/page_tree.hpp>
#include <kvcache/testing/index_conformance.hpp>

#include <cstdint>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

[[nodiscard]] std::vector<kv::token_id> run_of(int first, std::size_t length) {
    std::vector<kv::token_id> run(length, kv::token_id{0});
    run.front() = kv::token_id{first};
    return run;
}

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
    (void)tree.insert({}, run_of(1, 32), kv::page_id{0});
    (void)tree.insert({}, run_of(2, 32), kv::page_id{1});
    (void)tree.insert(kv::page_id{0}, run_of(3, 32), kv::page_id{2});
    CHECK(tree.continues(2, 0, run_of(3, 32)));
    CHECK_FALSE(tree.continues(2, 1, run_of(3, 32)));
    CHECK_FALSE(tree.continues(2, kv::index::page_tree::none, run_of(3, 32)));
    CHECK_FALSE(tree.continues(2, 0, run_of(4, 32)));
    auto late = run_of(3, 32);
    late.back() = kv::token_id{9};
    CHECK_FALSE(tree.continues(2, 0, late));
    CHECK(tree.continues(0, kv::index::page_tree::none, run_of(1, 32)));
}

TEST_CASE("a page of a tree is full when its run is a page long") {
    kv::index::page_tree tree({.tokens = 16}, 2);
    CHECK_FALSE(tree.full(kv::page_id{0}));
    (void)tree.insert({}, run_of(1, 15), kv::page_id{0});
    CHECK_FALSE(tree.full(kv::page_id{0}));
    (void)tree.insert({}, run_of(1, 16), kv::page_id{0});
    CHECK(tree.full(kv::page_id{0}));
    tree.erase(kv::page_id{0});
    CHECK_FALSE(tree.full(kv::page_id{0}));
}
