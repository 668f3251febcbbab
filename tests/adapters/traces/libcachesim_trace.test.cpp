// SPDX-License-Identifier: MIT
#include <kvcache/adapters/replay/next_uses.hpp>
#include <kvcache/adapters/replay/object_clairvoyant.hpp>
#include <kvcache/adapters/replay/object_replay.hpp>
#include <kvcache/adapters/traces/libcachesim_trace.hpp>
#include <kvcache/eviction/lru.hpp>

#include <adapters/traces/files.hpp>
#include <catch2/catch.hpp>

using namespace trace_tests;

namespace {

std::string record(std::uint64_t time, std::uint64_t key, std::uint64_t bytes) {
    std::string text;
    const auto put = [&](std::uint64_t value, int size) {
        for (int i = 0; i < size; ++i)
            text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    };
    put(time, 4);
    put(key, 8);
    put(bytes, 4);
    put(~std::uint64_t{0}, 8);
    return text;
}

} // namespace

TEST_CASE("records of oracleGeneral are read, without those of no bytes") {
    const std::string text = record(7, 1ull << 63, 4096) + record(8, 2, 0) + record(9, 3, 0xffffffff);
    for (const std::string& bytes : {text, gzipped(text), zstd_compressed(text)}) {
        const auto [accesses, error] = read_all<kv::libcachesim_trace, kv::object_access>(bytes);
        REQUIRE_FALSE(error);
        REQUIRE(accesses.size() == 2);
        CHECK(accesses[0].seconds == 7.0);
        CHECK(accesses[0].key == 1ull << 63);
        CHECK(accesses[0].bytes == 4096);
        CHECK(accesses[1].bytes == 0xffffffff);
    }
    std::string many;
    for (std::uint64_t i = 0; i < 10000; ++i)
        many += record(i, i, 1 + i % 5);
    CHECK(read_all<kv::libcachesim_trace, kv::object_access>(many).first.size() == 10000);
}

TEST_CASE("a file that ends inside a record is refused with the place") {
    CHECK(refusal<kv::libcachesim_trace, kv::object_access>(record(1, 2, 3) + "1234567") ==
          "t | t, byte 24 of the trace: 7 bytes are left, and a record of oracleGeneral has 24");
}

TEST_CASE("lru and Belady have the misses that libCacheSim has") {
    const auto path = shared_trace("cloudPhysicsIO.oracleGeneral.bin.gz");
    if (!path)
        return;
    std::vector<kv::object_access> accesses;
    auto trace = kv::libcachesim_trace::open(*path);
    REQUIRE(trace);
    for (kv::object_access access; *trace->next(access);)
        accesses.push_back(access);
    CHECK(accesses.size() == 113872);
    kv::next_uses next;
    for (std::size_t i = 0; i < accesses.size(); ++i)
        next.add(accesses[i].key, static_cast<std::uint32_t>(i));
    const std::vector<std::uint64_t> lru = {93374, 89783, 83572, 81722, 72494, 72104, 71972, 71704};
    const std::vector<std::uint64_t> belady = {79256, 70724, 65481, 61594, 59645, 57599, 50873, 48974};
    for (std::size_t size = 0; size < lru.size(); ++size) {
        const std::uint64_t capacity = (size + 1) * 128 << 20;
        INFO("capacity " << capacity);
        kv::object_replay<kv::eviction::lru> replay({}, capacity, next.distinct());
        kv::object_clairvoyant bound(capacity);
        for (std::size_t i = 0; i < accesses.size(); ++i) {
            replay.run(accesses[i]);
            bound.run(accesses[i], next.times()[i]);
        }
        CHECK(replay.counts().misses() == lru[size]);
        CHECK(bound.counts().misses() == belady[size]);
    }
}
