// SPDX-License-Identifier: MIT
#include <kvcache/cache.hpp>
#include <kvcache/observer/metrics.hpp>

#include <limits>
#include <string>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("samples have help, type and escaped labels") {
    kv::observer::exposition to({{"model", "a \"b\" \\ c\nd"}, {"_host", ""}});
    to.counter("hits_total", "Hits \\ and\nmore \"words\".", 7);
    to.gauge("share", "A share.", 0.25);
    CHECK(to.text() == "# HELP hits_total Hits \\\\ and\\nmore \"words\".\n"
                       "# TYPE hits_total counter\n"
                       "hits_total{model=\"a \\\"b\\\" \\\\ c\\nd\",_host=\"\"} 7\n"
                       "# HELP share A share.\n"
                       "# TYPE share gauge\n"
                       "share{model=\"a \\\"b\\\" \\\\ c\\nd\",_host=\"\"} 0.25\n");
}

TEST_CASE("numbers that are none have the words of the format") {
    kv::observer::exposition to({});
    to.gauge("a", "A.", std::numeric_limits<double>::quiet_NaN());
    to.gauge("b", "B.", -std::numeric_limits<double>::infinity());
    CHECK(to.text().find("\na NaN\n") != std::string::npos);
    CHECK(to.text().find("\nb -Inf\n") != std::string::npos);
}

TEST_CASE("a label's name is a name") {
    for (const char* name : {"", "1a", "a-b", "__a", "a b"})
        CHECK_THROWS_AS(kv::observer::exposition(kv::observer::exposition::labels{{name, "x"}}),
                        kv::contract_violation);
}

TEST_CASE("metrics report what was counted") {
    auto state = kv::observer::metrics{.labels = {{"model", "small"}}}.open();
    CHECK(state.text().find("kvcache_hit_ratio") == std::string::npos);
    state.on({kv::event_kind::matched, 3, 12, 1});
    state.on({kv::event_kind::evicted, 16, 0, 1});
    const std::string text = state.text();
    CHECK(text.find("\nkvcache_tokens_found_total{model=\"small\"} 3\n") != std::string::npos);
    CHECK(text.find("\nkvcache_pages_evicted_total{model=\"small\"} 1\n") != std::string::npos);
    CHECK(text.find("\nkvcache_hit_ratio{model=\"small\"} 0.25\n") != std::string::npos);
}

TEST_CASE("a cache exports its counters and occupancy to Prometheus") {
    constexpr kv::page_shape small{1, 1, 4, 16};
    auto cache = kv::make_cache({small, {8 * kv::codec::f32{}.open(small).page_bytes()}}, kv::observer::metrics{});
    auto sequence = cache.open();
    kvcache_test::past known;
    REQUIRE(kvcache_test::append(cache, sequence, known, kvcache_test::counted(0, 40)));
    const std::string text = metrics_text(cache);
    CHECK(text.find("\nkvcache_tokens_stored_total 40\n") != std::string::npos);
    CHECK(text.find("\nkvcache_pages_published_total 2\n") != std::string::npos);
    CHECK(text.find("\nkvcache_pages_in_use 3\n") != std::string::npos);
    CHECK(text.find("\nkvcache_pages_free 5\n") != std::string::npos);
    CHECK(text.ends_with("\nkvcache_sequences 1\n"));
}
