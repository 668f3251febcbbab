// SPDX-License-Identifier: MIT
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("all memory is zero and as aligned as requested, memory that was released before too") {
    kv::zeroed_memory& from = *kv::zeroed_memory::shared();
    for (int round = 0; round < 3; ++round)
        for (const std::size_t alignment : {std::size_t{16}, std::size_t{64}, kv::huge_page_bytes})
            for (const std::size_t bytes :
                 {std::size_t{1}, std::size_t{4097}, kv::huge_page_bytes, 3 * kv::huge_page_bytes + 12345}) {
                void* const at = from.allocate(bytes, alignment);
                const std::span all(static_cast<std::byte*>(at), bytes);
                CHECK(reinterpret_cast<std::uintptr_t>(at) % alignment == 0);
                CHECK(kvcache::ranges::all_of(all, [](std::byte b) { return b == std::byte{}; }));
                kvcache::ranges::fill(all, std::byte{0xff});
                from.deallocate(at, bytes, alignment);
            }
}

TEST_CASE("memory that the system has not is bad_alloc") {
    kv::zeroed_memory& from = *kv::zeroed_memory::shared();
    const std::size_t most = std::numeric_limits<std::size_t>::max();
    for (const std::size_t bytes : {most, most / 2 + 1, most / 4 * 3})
        CHECK_THROWS_AS(from.allocate(bytes, kv::huge_page_bytes), std::bad_alloc);
}
