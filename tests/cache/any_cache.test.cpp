// SPDX-License-Identifier: MIT
#include <kvcache/cache/any_cache.hpp>
#include <kvcache/testing/all.hpp>

#include <string>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape small{2, 2, 16, 16};
constexpr kv::cache_limits budget{9 * sizeof(float) * 2 * 2 * 2 * 16 * 16};

void play(const kv::policy_names& names) {
    INFO(names.storage << ", " << names.hash << ", " << names.index << ", " << names.eviction);
    auto cache = kv::open_any_cache(names, {small, budget});
    REQUIRE(cache);
    using model = cache_model<kv::any_cache<>, seeded>;
    model played(*cache, seeded(1), {.nothing_leaves = names.eviction == "never"});
    played.run(400);
    CHECK(played.reused() > 0);
}

} // namespace

TEST_CASE("every policy of the lists is to be had by its name") {
    const auto each = [](const auto& list, auto call) { std::apply([&](const auto&... p) { (call(p), ...); }, list); };
    each(kv::storage_policies{}, [](const auto& p) { play({.storage = kv::type_name<std::decay_t<decltype(p)>>()}); });
    each(kv::hash_policies{}, [](const auto& p) { play({.hash = kv::type_name<std::decay_t<decltype(p)>>()}); });
    each(kv::index_policies{}, [](const auto& p) { play({.index = kv::type_name<std::decay_t<decltype(p)>>()}); });
    each(kv::eviction_policies{},
         [](const auto& p) { play({.eviction = kv::type_name<std::decay_t<decltype(p)>>()}); });
}

TEST_CASE("an unknown policy name is an error that lists the known ones") {
    const auto none = kv::open_any_cache({.index = "b_tree"}, {small, budget});
    REQUIRE_FALSE(none);
    CHECK(none.error().code == kv::error_code::not_found);
    CHECK(none.error().field == "index");
    CHECK(none.error().message == "no index policy is named \"b_tree\"; there are radix, hash_chain, chunk");
    CHECK(kv::open_any_cache({.eviction = "Lru"}, {small, budget}).error().field == "eviction");
    CHECK(kv::open_any_cache({.hash = ""}, {small, budget}).error().field == "hash");
    CHECK(kv::open_any_cache({.storage = "heap "}, {small, budget}).error().field == "storage");
}
