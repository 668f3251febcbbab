// SPDX-License-Identifier: MIT
#include <kvcache/cache/any_cache.hpp>
#include <kvcache/testing/all.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("policies chosen at run time pass the conformance tests of their roles") {
    CHECK(kv::testing::storage_conformance(*kv::any_storage<kv::storage_policies>::named("zero_on_release<heap>"), 1)
              .empty());
    CHECK(kv::testing::hash_conformance(kv::any_hash<kv::hash_policies>(), 1).empty());
    for (const char* name : {"radix", "hash_chain"})
        CHECK(kv::testing::index_conformance(*kv::any_index<kv::index_policies>::named(name), 1).empty());
    CHECK(kv::testing::eviction_conformance(*kv::any_eviction<kv::eviction_policies>::named("lru"), 1).empty());
}

TEST_CASE("a caller's own list of policies can be chosen from") {
    using own = kv::any_storage<std::tuple<kv::storage::heap, kv::testing::fault_injecting_storage<>>>;
    CHECK(own::names() == "heap, testing::fault_injecting_storage<heap>");
    CHECK_FALSE(own::named("huge_pages"));
}
