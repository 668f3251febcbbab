// SPDX-License-Identifier: MIT
#include <kvcache/cache/compose.hpp>
#include <kvcache/observer/calling.hpp>

#include <cstddef>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("functions are called for the events that they are for, and may throw") {
    std::vector<kv::token_id> evicted;
    std::size_t refused = 0, all = 0;
    const kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 8, .tokens = 16};
    auto cache = kv::make_cache({.shape = shape, .limit = {.pages = 2}},
                                kv::observer::calling{.evicted =
                                                          [&](const kv::event& what) {
                                                              evicted.assign(what.run.begin(), what.run.end());
                                                              throw std::runtime_error("ignored");
                                                          },
                                                      .refused = [&](const kv::event& what) { refused = what.of; },
                                                      .any = [&](const kv::event&) { ++all; }});
    const std::vector<kv::token_id> first(16, kv::token_id{7}), second(32, kv::token_id{9});
    for (const auto& prompt : {first, second}) {
        auto sequence = cache.open();
        auto lease = cache.reserve(sequence, prompt.size());
        REQUIRE(lease);
        const std::vector<float> zeros(shape.head_dim);
        for (std::size_t row = 0; row < prompt.size(); ++row)
            lease->write(kv::layer_id{0}, row, zeros, zeros);
        lease->commit(prompt);
    }
    CHECK(evicted == first);
    auto sequence = cache.open();
    CHECK_FALSE(cache.reserve(sequence, 48));
    CHECK(refused == 48);
    CHECK(all > 4);
}
