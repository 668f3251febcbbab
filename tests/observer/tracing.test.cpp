// SPDX-License-Identifier: MIT
#include <kvcache/formats/json.hpp>
#include <kvcache/observer/tracing.hpp>

#include <string>

#include <catch2/catch.hpp>

TEST_CASE("every kind of event has its word") {
    using kvcache::event_kind;
    CHECK(kvcache::observer::name_of(event_kind::matched) == "matched");
    CHECK(kvcache::observer::name_of(event_kind::published) == "published");
    CHECK(kvcache::observer::name_of(event_kind::refused) == "refused");
}

namespace kv = kvcache;

TEST_CASE("a trace is a JSON array of Chrome events") {
    std::string text;
    {
        std::uint64_t now = 100;
        auto state = kv::observer::tracing{.write = [&](std::string_view more) { text += more; },
                                           .microseconds = [&] { return now += 5; }}
                         .open();
        state.on({kv::event_kind::matched, 3, 10, 1});
        kv::event full{kv::event_kind::published, 16, 0, 1};
        full.page_tokens = 16;
        state.on(full);
        full.kind = kv::event_kind::evicted;
        state.on(full);
    }
    const auto trace = kv::parse_json(text, "trace");
    REQUIRE(trace);
    REQUIRE(trace->size() == 5);
    CHECK((*trace)[0].dump() == R"({"name":"matched","cat":"kvcache","ph":"i","s":"p","ts":105,"pid":1,"tid":1,)"
                                R"("args":{"tokens":3,"of":10,"pages":1}})");
    CHECK((*trace)[2].dump() ==
          R"({"name":"full pages known","cat":"kvcache","ph":"C","ts":110,"pid":1,"args":{"pages":1}})");
    CHECK((*trace)[3]["name"] == "evicted");
    CHECK((*trace)[4]["args"]["pages"] == 0);
}

TEST_CASE("a trace without events is an empty array, and without a sink nothing is written") {
    std::string text;
    {
        const auto state = kv::observer::tracing{.write = [&](std::string_view more) { text += more; }}.open();
    }
    CHECK(kv::parse_json(text, "trace")->empty());
    auto state = kv::observer::tracing{}.open();
    CHECK_NOTHROW(state.on({}));
}
