// SPDX-License-Identifier: MIT
// Promise 1 through a Redis server, alone and after a disk: the pages of other hosts give the logits of a cold run,
// bit for bit, whatever happens to the server meanwhile.
#include <kvcache/cache/compose.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/tier/chain.hpp>
#include <kvcache/tier/redis.hpp>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "redis_server.hpp"
#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;

using small::model;
using small::some;

template <class Tier>
class host {
public:
    explicit host(const Tier& tier)
        : cache_(kv::make_cache({model().shape(16),
                                 {.bytes = 40 * kv::codec::f32{}.open(model().shape(16)).page_bytes()},
                                 model().id({1, 2})},
                                tier)),
          through_(cache_, model(), threads_, 64) {}
    ~host() { CHECK(cache_.check()); }

    // Returns whether the logits are those of a cold run. loaded() is the number of tokens from the tier.
    [[nodiscard]] bool right(const tokens& prompt, const kv::matrix& cold) {
        const auto before = kv::tier_stats_of(cache_).loaded_tokens;
        auto filled = through_.prefill(prompt, kv::logits_mode::all);
        REQUIRE(filled);
        loaded_ = kv::tier_stats_of(cache_).loaded_tokens - before;
        const auto& rows = filled->logits;
        return rows.size() > 0 && std::memcmp(rows.data(), cold.data() + (cold.size() - rows.size()),
                                              static_cast<std::size_t>(rows.size()) * sizeof(float)) == 0;
    }
    [[nodiscard]] std::size_t loaded() const { return loaded_; }
    [[nodiscard]] auto& tier() { return cache_.tier(); }

private:
    using cache = decltype(kv::make_cache({kv::page_shape{}, kv::cache_limits{}}, std::declval<Tier>()));
    kv::thread_pool threads_{1};
    cache cache_;
    kv::pipeline<cache, kv::transformer> through_;
    std::size_t loaded_ = 0;
};

kv::matrix cold(const tokens& prompt) {
    kv::thread_pool pool(1);
    auto cache = kv::make_cache({model().shape(16), {.bytes = 8 << 20}, model().id({1, 2})});
    kv::pipeline pipeline(cache, model(), pool, 64);
    auto filled = pipeline.prefill(prompt, kv::logits_mode::all);
    REQUIRE(filled);
    return std::move(filled->logits);
}

} // namespace

TEST_CASE("pages on a Redis server give the bits of a cold run, and its end only a miss") {
    if (testing_redis::missing())
        return;
    testing_redis::server server;
    const kv::tier::redis remote{.port = server.port(),
                                 .connect_timeout = std::chrono::seconds(2),
                                 .timeout = std::chrono::seconds(2),
                                 .retry = std::chrono::milliseconds(5),
                                 .longest_retry = std::chrono::milliseconds(20)};
    std::vector<std::pair<tokens, kv::matrix>> prompts;
    for (unsigned seed = 0; seed < 4; ++seed) {
        const tokens prompt = some(150, seed);
        prompts.emplace_back(prompt, cold(prompt));
    }
    const auto& [prompt, rows] = prompts.front();
    host one(remote);
    for (const auto& [said, wanted] : prompts)
        CHECK(one.right(said, wanted));
    REQUIRE(one.tier().flush());
    {
        host other(remote);
        host chained(kv::tier::chain{kv::tier::memory<>{}, remote});
        CHECK(other.right(prompt, rows));
        CHECK(other.loaded() == 144);
        CHECK(chained.right(prompt, rows));
        CHECK(chained.loaded() == 144);
        CHECK(chained.tier().first().counts().written == 9);
    }
    host third(remote);
    CHECK(third.right(prompts[1].first, prompts[1].second));
    CHECK(third.loaded() == 144);
    server.kill();
    for (const auto& [said, wanted] : prompts)
        CHECK(third.right(said, wanted));
    CHECK(third.loaded() == 0);
    server.start(); // empty
    REQUIRE(testing_redis::soon([&] { return third.tier().connected() == 1; }));
    host fourth(remote);
    CHECK(fourth.right(prompt, rows));
    CHECK(fourth.loaded() == 0);
    REQUIRE(fourth.tier().flush());
    host fifth(remote);
    CHECK(server.ask({"SET", "kvcache:foreign", "x"}) == "OK");
    CHECK(fifth.right(prompt, rows));
    CHECK(fifth.loaded() == 144);
    CHECK(server.ask({"FLUSHALL"}) == "OK");
    host sixth(remote);
    CHECK(sixth.right(prompt, rows));
    CHECK(sixth.loaded() == 0);
}
