// SPDX-License-Identifier: MIT
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/compressed.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "cache/past_rows.hpp"
#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using namespace testing_rows;

kv::tier::lmdb<> store_in(const std::filesystem::path& directory) {
    return {.directory = directory,
            .bytes = std::size_t{1} << 20,
            .records = 200,
            .queue_bytes = std::size_t{1} << 20,
            .sync = kv::tier::sync_policy::by_the_system,
            .gather = std::chrono::milliseconds(1)};
}

} // namespace

TEST_CASE("a compressed disk passes the conformance tests, and a restart finds its pages bit for bit") {
    const testing_files::temporary_directory home;
    for (std::uint64_t seed = 0; seed < 2; ++seed)
        CHECK(kv::testing::tier_conformance(
                  kv::tier::compressed<kv::tier::lmdb<>>{store_in(home.path() / std::to_string(seed))}, seed)
                  .empty());
    const tokens prompt = some(100, 1);
    const kv::tier::compressed<kv::tier::lmdb<>> disk{store_in(home.path() / "pages")};
    std::size_t bytes = 0;
    {
        auto cache = made(20, disk);
        CHECK(prefill(cache, prompt).loaded == 0);
        REQUIRE(cache.tier().flush());
        CHECK(cache.tier().counts().records == 6);
        bytes = cache.tier().counts().bytes;
    }
    {
        auto again = made(20, disk);
        CHECK(prefill(again, prompt).loaded == 96); // compares every row
        CHECK(kv::tier_stats_of(again).refused == 0);
        CHECK_FALSE(again.tier().damage());
        CHECK(again.check());
    }
    auto plain = made(20, disk.inner); // the same store without the code
    CHECK(prefill(plain, prompt).loaded == 0);
    CHECK(kv::tier_stats_of(plain).refused == 0);
    REQUIRE(plain.tier().flush());
    CHECK(plain.tier().counts().records == 12);
    CHECK(plain.tier().counts().bytes - bytes >= bytes);
}
