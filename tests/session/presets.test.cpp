// SPDX-License-Identifier: MIT
#include <kvcache/cache/compose.hpp>
#include <kvcache/session/presets.hpp>
#include <kvcache/session/verify.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;

using small::some;

kv::transformer small_model() {
    return kv::make_random_model(small::config_of(3), 3);
}

} // namespace

TEST_CASE("every preset reuses what it says: a prefix exactly, or documents of 128 that stand elsewhere") {
    const kv::transformer model = small_model();
    const tokens first = some(128, 1), second = some(128, 2);
    tokens prompt = second;
    prompt.insert(prompt.end(), first.begin(), first.end());
    const tokens question = some(9, 3);
    prompt.insert(prompt.end(), question.begin(), question.end());
    kv::for_presets([&](const auto& as) {
        INFO(as.name);
        using recompute = std::remove_cvref_t<decltype(as.recompute)>;
        using cache = kv::cache<kv::chunk, kv::lru, recompute>;
        auto store =
            kv::make_cache(model.shape(16), {.bytes = std::size_t{1} << 22}, as.index, as.eviction, as.recompute);
        kv::team team(1);
        kv::chunk_pipeline<cache, kv::transformer> through(store, model, team, {.split = as.split, .store = false});
        for (const tokens& document : {first, second})
            REQUIRE(through.warm(document, as.warm)->chunks == 1);
        const auto seen = kv::verify(through, prompt, some(4, 5), as.mode);
        REQUIRE(seen.has_value());
        CHECK(seen->counts.exact >= 128);
        CHECK(seen->same_bits == (as.mode == kv::reuse_mode::prefix));
        const std::size_t elsewhere = seen->counts.approximate + seen->counts.recomputed;
        CHECK(elsewhere == (as.mode == kv::reuse_mode::prefix ? 0u : 128u));
        if constexpr (std::is_same_v<recompute, kv::seam>)
            CHECK(seen->counts.recomputed == 16);
        if constexpr (std::is_same_v<recompute, kv::head>)
            CHECK(seen->counts.recomputed == as.recompute.rows);
        if constexpr (std::is_same_v<recompute, kv::blend>)
            CHECK(seen->counts.recomputed == 19);
    });
}

TEST_CASE("all or nothing takes a text that is gone on with, and drops one that was edited, with the same bits") {
    const kv::transformer model = small_model();
    auto store =
        kv::make_cache(model.shape(16), {.bytes = std::size_t{1} << 24}, kv::all_or_nothing{}); // of every edit
    kv::team team(1);
    kv::pipeline through(store, model, team);
    const tokens text = some(75, 1);
    REQUIRE(through.feed(text).has_value());
    const auto reused = [&](const tokens& prompt) {
        auto cold = kv::make_cache(model.shape(16), {.bytes = std::size_t{1} << 22});
        kv::pipeline fresh(cold, model, team);
        const auto got = through.feed(prompt);
        CHECK(got->logits == fresh.feed(prompt)->logits);
        return got->reused;
    };
    tokens longer = text;
    for (const kv::token_id token : some(9, 2))
        longer.push_back(token);
    CHECK(reused(longer) == 75);
    for (std::size_t at = 0; at < longer.size(); ++at) {
        tokens edited = longer;
        edited[at] = kv::token_id{static_cast<std::int32_t>((index_of(edited[at]) + 1) % 131)};
        CHECK(reused(edited) == 0);
    }
}
