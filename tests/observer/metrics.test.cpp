// SPDX-License-Identifier: MIT
#include <kvcache/observer/metrics.hpp>

#include <string>

#include <catch2/catch.hpp>

namespace kv = kvcache;

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
