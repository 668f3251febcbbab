// SPDX-License-Identifier: MIT
#include "../../bench/traces/object_traces.hpp"

#include <kvcache/eviction/lru.hpp>

#include "../../bench/replay/bounds.hpp"
#include "../../bench/replay/object_replay.hpp"
#include "../../bench/replay/workload.hpp"
#include "trace_files.hpp"
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

constexpr auto* refused_csv = &refusal<bench::csv_trace, bench::object_access>;

std::vector<bench::object_access> accesses_of(const std::string& text) {
    INFO(refused_csv(text));
    const auto [accesses, error] = read_all<bench::csv_trace, bench::object_access>(text);
    REQUIRE_FALSE(error);
    return accesses;
}

} // namespace

TEST_CASE("records of oracleGeneral are read, without those of no bytes") {
    const std::string text = record(7, 1ull << 63, 4096) + record(8, 2, 0) + record(9, 3, 0xffffffff);
    for (const std::string& bytes : {text, gzipped(text), zstd_compressed(text)}) {
        const auto [accesses, error] = read_all<bench::libcachesim_trace, bench::object_access>(bytes);
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
    CHECK(read_all<bench::libcachesim_trace, bench::object_access>(many).first.size() == 10000);
}

TEST_CASE("a file that ends inside a record is refused with the place") {
    CHECK(refusal<bench::libcachesim_trace, bench::object_access>(record(1, 2, 3) + "1234567") ==
          "t | t, byte 24 of the trace: 7 bytes are left, and a record of oracleGeneral has 24");
}

TEST_CASE("lru and Belady have the misses that libCacheSim has") {
    const auto path = shared_trace("cloudPhysicsIO.oracleGeneral.bin.gz");
    if (!path)
        return;
    std::vector<bench::object_access> accesses;
    auto trace = bench::open_trace<bench::libcachesim_trace>(*path);
    REQUIRE(trace);
    for (bench::object_access access; *trace->next(access);)
        accesses.push_back(access);
    CHECK(accesses.size() == 113872);
    bench::next_uses next;
    for (std::size_t i = 0; i < accesses.size(); ++i)
        next.add(accesses[i].key, static_cast<std::uint32_t>(i));
    const std::vector<std::uint64_t> lru = {93374, 89783, 83572, 81722, 72494, 72104, 71972, 71704};
    const std::vector<std::uint64_t> belady = {79256, 70724, 65481, 61594, 59645, 57599, 50873, 48974};
    for (std::size_t size = 0; size < lru.size(); ++size) {
        const std::uint64_t capacity = (size + 1) * 128 << 20;
        INFO("capacity " << capacity);
        bench::object_replay<kv::eviction::lru> replay({}, capacity, next.distinct());
        bench::object_clairvoyant bound(capacity);
        for (std::size_t i = 0; i < accesses.size(); ++i) {
            replay.run(accesses[i]);
            bound.run(accesses[i], next.times()[i]);
        }
        CHECK(replay.counts().misses() == lru[size]);
        CHECK(bound.counts().misses() == belady[size]);
    }
}

TEST_CASE("values are read with a header and without") {
    for (const char* text :
         {"0,5,100\n1.5,/a b,7\n2,5,100\n\n3,9,0\n", "time,key,size\r\n0, 5 ,100\r\n1.5,/a b,7\r\n2,5,100",
          "host,obj_size,id,timestamp\nx,100,5,0\n,7,/a b,1.5\ny,100,5,2"}) {
        const auto accesses = accesses_of(text);
        REQUIRE(accesses.size() == 3);
        CHECK(accesses[0].seconds == 0.0);
        CHECK(accesses[0].key == 5);
        CHECK(accesses[0].bytes == 100);
        CHECK(accesses[1].seconds == 1.5);
        CHECK(accesses[1].bytes == 7);
        CHECK(accesses[2].key == 5);
    }
    CHECK(accesses_of("").empty());
    CHECK(accesses_of("time,key,size\n").empty());
    CHECK(accesses_of("0,18446744073709551615,1099511627776\n").front().bytes == bench::csv_trace::largest);
}

TEST_CASE("a broken line of values is refused by its number") {
    CHECK(refused_csv("key,size\n1,2\n") == "t | t, line 1: the header has no column time");
    CHECK(refused_csv("0,1,2\n0,1\n") == "t | t, line 2: there are 2 values instead of 3");
    CHECK(refused_csv("0,1,2,3\n") == "t | t, line 1: there are 4 values instead of 3");
    CHECK(refused_csv("0,1,2\nx,1,2\n") == "t | t, line 2: the time is no number of seconds since a start");
    CHECK(refused_csv("-1,1,2\n") == "t | t, line 1: the time is no number of seconds since a start");
    CHECK(refused_csv("inf,1,2\n") == "t | t, line 1: the time is no number of seconds since a start");
    CHECK(refused_csv("0,,2\n") == "t | t, line 1: the key is empty");
    for (const char* size : {"", "-1", "1.5", "1e3", "1099511627777", "99999999999999999999"})
        CHECK(refused_csv("0,1," + std::string(size)) == "t | t, line 1: the size is not an integer from 0 to 2^40");
    CHECK(refused_csv(std::string("0,1,2\n0,\0,2\n", 12)) == "t | t, line 2: the line has a NUL byte");
    CHECK(refused_csv("0,1,2\n" + std::string(1 << 20, ',')) == "t | t, line 2: there are 1025 values instead of 3");
}

TEST_CASE("block numbers are read, one a line") {
    const auto [accesses, error] =
        read_all<bench::lirs_trace, bench::object_access>("0\n*\n 7 \r\n\n18446744073709551615\n7");
    REQUIRE_FALSE(error);
    REQUIRE(accesses.size() == 4);
    CHECK(accesses[1].key == 7);
    CHECK(accesses[1].seconds == 1.0);
    CHECK(accesses[1].bytes == 1);
    CHECK(accesses[2].key == ~std::uint64_t{0});
}

TEST_CASE("what is no block number is refused by its line") {
    for (const char* line : {"x", "-1", "1.5", "1 2", "18446744073709551616", "0x10"})
        CHECK(refusal<bench::lirs_trace, bench::object_access>("4\n" + std::string(line) + "\n") ==
              "t | t, line 2: this is no block number from 0 to 2^64 - 1");
}
