// SPDX-License-Identifier: MIT
#include <kvcache/core/policy_name.hpp>
#include <kvcache/eviction/lru.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace elsewhere {
struct mine {};
} // namespace elsewhere

namespace kvcache::tests {
template <class Inner>
struct wrapper {};
} // namespace kvcache::tests

static_assert(kv::policy_name<kv::lru>() == "lru");

TEST_CASE("a policy is named as code writes it") {
    CHECK(kv::policy_name<kv::lru>() == "lru");
    CHECK(kv::policy_name<elsewhere::mine>() == "elsewhere::mine");
    CHECK(kv::policy_name<kv::tests::wrapper<kv::lru>>() == "tests::wrapper<lru>");
    CHECK(kv::policy_name<int>() == "int");
}
