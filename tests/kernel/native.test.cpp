// SPDX-License-Identifier: MIT
#include <kvcache/kernel/native.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using kv::detail::native_floats;

namespace {

constexpr std::size_t lanes = kv::detail::native_lanes;

std::array<float, lanes> lanes_of(const native_floats& x) {
    std::array<float, lanes> made{};
    x.store_unaligned(made.data());
    return made;
}

native_floats loaded(std::uint64_t seed) {
    return native_floats::load_unaligned(numbers::uniforms(seed, lanes, 4.0f).data());
}

} // namespace

TEST_CASE("sixteen lanes are whole machine vectors") {
    CHECK(lanes * kv::detail::native_parts == 16);
}

TEST_CASE("a fused multiply-add is rounded once, in every lane") {
    const float x = 1.0f + 0x1p-12f;
    for (const float found : lanes_of(kv::detail::fused(native_floats(x), native_floats(x), native_floats(-1.0f))))
        CHECK(found == 0x1p-11f + 0x1p-24f); // x * x alone rounds the last bit away
    for (std::uint64_t seed = 0; seed < 300; seed += 3) {
        const auto a = loaded(seed), b = loaded(seed + 1), c = loaded(seed + 2);
        const auto found = lanes_of(kv::detail::fused(a, b, c));
        for (std::size_t i = 0; i < lanes; ++i)
            CHECK(numbers::same_bits(found[i], std::fma(lanes_of(a)[i], lanes_of(b)[i], lanes_of(c)[i])));
    }
}

TEST_CASE("a quotient is rounded once, in every lane") {
    for (std::uint64_t seed = 0; seed < 300; seed += 2) {
        const auto a = loaded(seed), b = loaded(seed + 1);
        const auto found = lanes_of(kv::detail::divided(a, b));
        for (std::size_t i = 0; i < lanes; ++i)
            CHECK(numbers::same_bits(found[i], lanes_of(a)[i] / lanes_of(b)[i]));
    }
}

TEST_CASE("a vector that is kept is the vector it was") {
    auto x = loaded(7);
    const auto before = lanes_of(x);
    kv::detail::keep(x);
    CHECK(lanes_of(x) == before);
}

TEST_CASE("any address may be prefetched: inside an array, past its end, or of none") {
    const std::vector<float> some(20, 3.0f);
    CHECK(kv::address(some.data(), 7) == &some[7]);
    const std::byte* none = nullptr;
    for (const std::size_t offset :
         {std::size_t{0}, std::size_t{19}, std::size_t{1} << 40, std::numeric_limits<std::size_t>::max()}) {
        kv::prefetch(some.data(), offset);
        kv::prefetch_soon(none, offset);
        kv::prefetch_to_write(some.data(), offset);
    }
    CHECK(some == std::vector<float>(20, 3.0f));
}
