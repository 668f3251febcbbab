// SPDX-License-Identifier: MIT
#include <kvcache/cache/metrics_text.hpp>

#include <string>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

TEST_CASE("a cache exports its counters and occupancy to Prometheus") {
    constexpr kv::page_shape small{1, 1, 4, 16};
    auto cache = kv::make_cache({small, {8 * kv::codec::f32{}.open(small).page_bytes()}}, kv::observer::metrics{});
    auto sequence = cache.open();
    past known;
    REQUIRE(append(cache, sequence, known, counted(0, 40)));
    const std::string text = metrics_text(cache);
    CHECK(text.find("\nkvcache_tokens_stored_total 40\n") != std::string::npos);
    CHECK(text.find("\nkvcache_pages_published_total 2\n") != std::string::npos);
    CHECK(text.find("\nkvcache_pages_in_use 3\n") != std::string::npos);
    CHECK(text.find("\nkvcache_pages_free 5\n") != std::string::npos);
    CHECK(text.ends_with("\nkvcache_sequences 1\n"));
}
