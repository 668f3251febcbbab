// SPDX-License-Identifier: MIT
#include <kvcache/adapters/traces/lirs_trace.hpp>

#include <adapters/traces/files.hpp>
#include <catch2/catch.hpp>

using namespace trace_tests;

TEST_CASE("block numbers are read, one a line") {
    const auto [accesses, error] =
        read_all<kv::lirs_trace, kv::object_access>("0\n*\n 7 \r\n\n18446744073709551615\n7");
    REQUIRE_FALSE(error);
    REQUIRE(accesses.size() == 4);
    CHECK(accesses[1].key == 7);
    CHECK(accesses[1].seconds == 1.0);
    CHECK(accesses[1].bytes == 1);
    CHECK(accesses[2].key == ~std::uint64_t{0});
}

TEST_CASE("what is no block number is refused by its line") {
    for (const char* line : {"x", "-1", "1.5", "1 2", "18446744073709551616", "0x10"})
        CHECK(refusal<kv::lirs_trace, kv::object_access>("4\n" + std::string(line) + "\n") ==
              "t | t, line 2: this is no block number from 0 to 2^64 - 1");
}
