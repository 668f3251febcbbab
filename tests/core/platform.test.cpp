// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a sum, a difference or a product of two bytes overflows where the whole result has no place in a byte") {
    const auto fits = [](int n) { return n >= -128 && n <= 127; };
    int wrong = 0;
    for (int x = -128; x <= 127; ++x)
        for (int y = -128; y <= 127; ++y) {
            const auto a = static_cast<std::int8_t>(x), b = static_cast<std::int8_t>(y);
            std::int8_t made = 0;
            wrong += kv::add_overflows(a, b, made) == fits(x + y) || (fits(x + y) && made != x + y);
            wrong += kv::subtract_overflows(a, b, made) == fits(x - y) || (fits(x - y) && made != x - y);
            wrong += kv::multiply_overflows(a, b, made) == fits(x * y) || (fits(x * y) && made != x * y);
        }
    CHECK(wrong == 0);
    std::size_t most = 0;
    CHECK(kv::add_overflows(std::numeric_limits<std::size_t>::max(), std::size_t{1}, most));
    std::int64_t least = 0;
    CHECK(kv::multiply_overflows(std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, least));
}

TEST_CASE("a clock does not go back, and moves") {
    const auto first = kv::monotonic_nanoseconds();
    auto last = first;
    for (int i = 0; i < 10'000'000 && last == first; ++i) {
        const auto now = kv::monotonic_nanoseconds();
        CHECK(now >= last);
        last = now;
    }
    CHECK(last > first);
}

TEST_CASE("memory of the system is zero, aligned, and given back whole") {
    constexpr std::size_t alignment = std::size_t{1} << 21;
    CHECK(kv::platform::system_page_bytes() >= 4096);
    for (int round = 0; round < 50; ++round) { // 3.2 GB in all, were it not given back
        std::byte* const at = kv::platform::map_zeroed(32 * alignment, alignment);
        REQUIRE(at != nullptr);
        CHECK(reinterpret_cast<std::uintptr_t>(at) % alignment == 0);
        const std::span last(at + 32 * alignment - 4096, 4096);
        CHECK(kvcache::ranges::all_of(last, [](std::byte b) { return b == std::byte{}; }));
        kvcache::ranges::fill(last, std::byte{1});
        kv::platform::unmap_zeroed(at, 32 * alignment, alignment);
    }
}
