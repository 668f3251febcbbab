// SPDX-License-Identifier: MIT
#include <kvcache/storage/fault_injecting.hpp>
#include <kvcache/testing/storage_conformance.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("every n-th page is refused") {
    for (const std::uint64_t every : {0u, 1u, 2u, 5u}) {
        auto state = kv::storage::fault_injecting<>{.every = every}.open(20, 64);
        for (std::uint32_t call = 1; call <= 20; ++call)
            CHECK(state.acquire(kv::page_id{call - 1}) == (every == 0 || call % every != 0));
        CHECK(kv::testing::storage_conformance(kv::storage::fault_injecting<>{.every = every}, 1).empty());
    }
}
