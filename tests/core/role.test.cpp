// SPDX-License-Identifier: MIT
#include <kvcache/core/role.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

struct named {
    using role = kv::hash_role;
};
struct misnamed {
    using role = int;
};
struct foreign {};

} // namespace

template <>
struct kvcache::role_of<foreign> {
    using type = kvcache::index_role;
};

TEST_CASE("a policy names a role that a cache has") {
    STATIC_REQUIRE(kv::policy<named>);
    STATIC_REQUIRE(kv::plays<named, kv::hash_role>);
    STATIC_REQUIRE_FALSE(kv::plays<named, kv::index_role>);
    STATIC_REQUIRE(kv::plays<foreign, kv::index_role>);
    STATIC_REQUIRE_FALSE(kv::policy<misnamed>);
    STATIC_REQUIRE_FALSE(kv::policy<int>);
}
