// SPDX-License-Identifier: MIT
#include <kvcache/core/type_name.hpp>
#include <kvcache/storage/zero_on_release.hpp>

#include <catch2/catch.hpp>

namespace mine {
struct policy {};
template <unsigned Bits, long Shift, class Inner = policy>
struct wrapper {};
struct x4u {};
} // namespace mine

TEST_CASE("a type has the name that it is written with") {
    CHECK(kvcache::type_name<kvcache::storage::heap>() == "heap");
    CHECK(kvcache::type_name<kvcache::storage::zero_on_release<kvcache::storage::heap>>() == "zero_on_release<heap>");
    CHECK(kvcache::type_name<mine::policy>() == "mine::policy");
    CHECK(kvcache::type_name<mine::wrapper<4, -12>>() == "mine::wrapper<4, -12, mine::policy>");
    CHECK(kvcache::type_name<mine::wrapper<0, 7, mine::x4u>>() == "mine::wrapper<0, 7, mine::x4u>");
}
