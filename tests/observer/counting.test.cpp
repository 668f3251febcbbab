// SPDX-License-Identifier: MIT
#include <kvcache/observer/all.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("each kind of event has its sum") {
    auto state = kv::observer::counting{}.open();
    for (int twice = 0; twice < 2; ++twice) {
        state.on({kv::event_kind::matched, 3, 10, 1});
        state.on({kv::event_kind::matched, 0, 4, 0});
        state.on({kv::event_kind::spliced, 5, 9, 2});
        state.on({kv::event_kind::stored, 7, 0, 0});
        state.on({kv::event_kind::published, 16, 0, 1});
        state.on({kv::event_kind::copied, 5, 0, 1});
        state.on({kv::event_kind::evicted, 16, 0, 1});
        state.on({kv::event_kind::refused, 0, 40, 3});
    }
    const kv::observer::event_counts& counts = state.counts();
    CHECK(counts.lookups == 4);
    CHECK(counts.hits == 2);
    CHECK(counts.misses() == 2);
    CHECK(counts.approximate_hits == 2);
    CHECK(counts.tokens_spliced == 10);
    CHECK(counts.tokens_looked_up == 28);
    CHECK(counts.tokens_found == 6);
    CHECK(counts.tokens_stored == 14);
    CHECK(counts.pages_published == 2);
    CHECK(counts.pages_copied == 2);
    CHECK(counts.pages_evicted == 2);
    CHECK(counts.refusals == 2);
    state.reset();
    CHECK(counts.lookups == 0);
    CHECK(counts.refusals == 0);
}
