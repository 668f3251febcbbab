// SPDX-License-Identifier: MIT
#include <kvcache/observer/none.hpp>

#include <type_traits>

#include <catch2/catch.hpp>

static_assert(std::is_empty_v<kvcache::observer::none::state>);

TEST_CASE("observer none accepts every event and keeps nothing") {
    auto state = kvcache::observer::none{}.open();
    CHECK_NOTHROW(state.on({}));
}
