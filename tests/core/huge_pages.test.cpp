// SPDX-License-Identifier: MIT
#include <kvcache/core/memory.hpp>
#include <kvcache/core/shared_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("what is too small for a huge page is left alone") {
    alignas(64) std::byte few[64] = {};
    CHECK_FALSE(kv::want_huge_pages(few, sizeof few));
    CHECK(kv::bytes_on_huge_pages(few) == 0);
    CHECK(kv::bytes_on_huge_pages({}) == 0);
}

TEST_CASE("large memory begins on a huge page's boundary, and reports how much of it is huge") {
    constexpr std::size_t bytes = 4 * kv::huge_page_bytes + 100;
    kv::aligned_vector<std::byte> large(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(large.data()) % kv::huge_page_bytes == 0);
    const std::size_t huge = kv::bytes_on_huge_pages(large); // zero if the system provides none
    CHECK(huge <= bytes);
    CHECK((huge % kv::huge_page_bytes == 0 || huge % kv::huge_page_bytes == 100)); // the rest may be on a huge page too
    kv::want_huge_pages(large.data(), large.size());
    CHECK(large[bytes - 1] == std::byte{});

    const auto shared = kv::shared_memory(bytes, nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(shared.get()) % kv::huge_page_bytes == 0);
    std::memset(shared.get(), 1, bytes);
}
