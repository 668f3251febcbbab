// SPDX-License-Identifier: MIT
#include <kvcache/observer/words.hpp>

#include <catch2/catch.hpp>

TEST_CASE("every kind of event has its word") {
    using kvcache::event_kind;
    CHECK(name_of(event_kind::matched) == "matched");
    CHECK(name_of(event_kind::published) == "published");
    CHECK(name_of(event_kind::refused) == "refused");
}
