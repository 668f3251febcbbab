// SPDX-License-Identifier: MIT
#include <kvcache/core/errors.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a result holds a value or an error, never both") {
    const kv::result<int> good = 7;
    CHECK(good.has_value());
    CHECK(*good == 7);
    CHECK_THROWS_AS((void)good.error(), kv::contract_violation);

    const kv::result<int> bad = kv::error{kv::error_code::truncated, "pages", "three bytes short"};
    CHECK_FALSE(bad);
    CHECK(bad.error().field == "pages");
    CHECK_THROWS_AS((void)*bad, kv::contract_violation);
}

TEST_CASE("a result of nothing is success until it is given an error") {
    CHECK(kv::result<void>{}.has_value());
    CHECK_FALSE(kv::result<void>{kv::error{}}.has_value());
}
