// SPDX-License-Identifier: MIT
#include <kvcache/observer/words.hpp>

#include <catch2/catch.hpp>

TEST_CASE("every kind of event has its word") {
    using kvcache::event_kind;
    CHECK(kvcache::observer::name_of(event_kind::matched) == "matched");
    CHECK(kvcache::observer::name_of(event_kind::published) == "published");
    CHECK(kvcache::observer::name_of(event_kind::refused) == "refused");
}
