// SPDX-License-Identifier: MIT
#include <kvcache/recompute/exact_prefix.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("all but the last token of a full hit is reused") {
    const auto state = kv::recompute::exact_prefix{}.open({});
    CHECK(state.first_computed(0, 0) == 0);
    CHECK(state.first_computed(0, 7) == 0);
    CHECK(state.first_computed(5, 7) == 5);
    CHECK(state.first_computed(7, 7) == 6);
}
