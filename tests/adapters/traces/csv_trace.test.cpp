// SPDX-License-Identifier: MIT
#include <kvcache/adapters/traces/csv_trace.hpp>

#include <adapters/traces/files.hpp>
#include <catch2/catch.hpp>

using namespace trace_tests;

namespace {

std::string refused(const std::string& text) {
    return refusal<kv::csv_trace, kv::object_access>(text);
}

std::vector<kv::object_access> accesses_of(const std::string& text) {
    INFO(refused(text));
    const auto [accesses, error] = read_all<kv::csv_trace, kv::object_access>(text);
    REQUIRE_FALSE(error);
    return accesses;
}

} // namespace

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
    CHECK(accesses_of("0,18446744073709551615,1099511627776\n").front().bytes == kv::csv_trace::largest);
}

TEST_CASE("a broken line of values is refused by its number") {
    CHECK(refused("key,size\n1,2\n") == "t | t, line 1: the header has no column time");
    CHECK(refused("0,1,2\n0,1\n") == "t | t, line 2: there are 2 values instead of 3");
    CHECK(refused("0,1,2,3\n") == "t | t, line 1: there are 4 values instead of 3");
    CHECK(refused("0,1,2\nx,1,2\n") == "t | t, line 2: the time is no number of seconds since a start");
    CHECK(refused("-1,1,2\n") == "t | t, line 1: the time is no number of seconds since a start");
    CHECK(refused("inf,1,2\n") == "t | t, line 1: the time is no number of seconds since a start");
    CHECK(refused("0,,2\n") == "t | t, line 1: the key is empty");
    for (const char* size : {"", "-1", "1.5", "1e3", "1099511627777", "99999999999999999999"})
        CHECK(refused("0,1," + std::string(size)) == "t | t, line 1: the size is not an integer from 0 to 2^40");
    CHECK(refused(std::string("0,1,2\n0,\0,2\n", 12)) == "t | t, line 2: the line has a NUL byte");
    CHECK(refused("0,1,2\n" + std::string(1 << 20, ',')) == "t | t, line 2: there are 1025 values instead of 3");
}
