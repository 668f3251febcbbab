// SPDX-License-Identifier: MIT
#include <kvcache/observer/silent.hpp>

#include <type_traits>

#include <catch2/catch.hpp>

static_assert(std::is_empty_v<kvcache::silent::state>);

TEST_CASE("a silent observer hears everything and keeps nothing") {
    auto state = kvcache::silent{}.open();
    CHECK_NOTHROW(state.on({}));
}
