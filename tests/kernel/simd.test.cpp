// SPDX-License-Identifier: MIT
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using numbers::same_bits;

namespace {

using lanes = std::array<float, 16>;

lanes lanes_of(const kv::f32x16& v) {
    lanes out{};
    v.store(out.data());
    return out;
}

lanes some(std::uint64_t seed, float power = 1.0f) {
    lanes made{};
    std::ranges::copy(numbers::uniforms(seed, 16, power), made.begin());
    return made;
}

} // namespace

TEST_CASE("fma rounds once, whatever the target and -ffp-contract") {
    volatile float x = 1.0f + 0x1p-12f, z = -(1.0f + 0x1p-11f); // x * x is 1 + 2^-11 + 2^-24
    const auto fused = lanes_of(kv::fma(kv::f32x16::broadcast(x), kv::f32x16::broadcast(x), kv::f32x16::broadcast(z)));
    for (const float lane : fused)
        CHECK(lane == 0x1p-24f); // two roundings give 0

    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const lanes a = some(3 * seed, 64.0f), b = some(3 * seed + 1), c = some(3 * seed + 2, 0x1p-3f);
        const auto got =
            lanes_of(kv::fma(kv::f32x16::load(a.data()), kv::f32x16::load(b.data()), kv::f32x16::load(c.data())));
        for (std::size_t i = 0; i < 16; ++i)
            REQUIRE(same_bits(got[i], std::fma(a[i], b[i], c[i])));
    }
}

TEST_CASE("fma keeps signs, infinities and subnormals as std::fma does") {
    const float edges[] = {
        0.0f, -0.0f, 1.0f, -1.0f, 0x1p-126f, 0x1p-149f, -0x1p-140f, 0x1p127f, numbers::infinity, -numbers::infinity};
    for (const float a : edges)
        for (const float b : edges)
            for (const float c : edges) {
                const float got =
                    lanes_of(kv::fma(kv::f32x16::broadcast(a), kv::f32x16::broadcast(b), kv::f32x16::broadcast(c)))[7];
                const float want = std::fma(a, b, c);
                CHECK((same_bits(got, want) || (std::isnan(got) && std::isnan(want))));
            }
}

TEST_CASE("lanes are loaded and stored in order, whole and in part") {
    const lanes from = some(5);
    CHECK(lanes_of(kv::f32x16::load(from.data())) == from);
    for (std::size_t count = 0; count < 16; ++count) {
        const lanes part = lanes_of(kv::f32x16::load_first(from.data(), count));
        lanes to{};
        to.fill(9.0f);
        kv::f32x16::load(from.data()).store_first(to.data(), count);
        for (std::size_t i = 0; i < 16; ++i) {
            CHECK(part[i] == (i < count ? from[i] : 0.0f));
            CHECK(to[i] == (i < count ? from[i] : 9.0f));
        }
    }
    for (std::size_t count = 0; count < 20; ++count) { // min(count, 16) floats
        std::vector<float> exactly(from.begin(),
                                   from.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(count, 16)));
        const kv::f32x16 part = kv::f32x16::load_up_to(exactly.data(), count);
        lanes to{};
        to.fill(9.0f);
        part.store_up_to(to.data(), count);
        for (std::size_t i = 0; i < 16; ++i) {
            CHECK(lanes_of(part)[i] == (i < count ? from[i] : 0.0f));
            CHECK(to[i] == (i < count ? from[i] : 9.0f));
        }
    }
}

TEST_CASE("every bfloat16 widens exactly") {
    for (std::uint32_t first = 0; first < 0x10000; first += 16) {
        std::array<kv::bfloat16, 16> narrow{};
        for (std::uint32_t i = 0; i < 16; ++i)
            narrow[i].bits = static_cast<std::uint16_t>(first + i);
        const lanes wide = lanes_of(kv::f32x16::load(narrow.data()));
        for (std::uint32_t i = 0; i < 16; ++i)
            REQUIRE(std::bit_cast<std::uint32_t>(wide[i]) == (first + i) << 16);
    }
}

TEST_CASE("every binary16 widens to the bits that arithmetic on integers gives, NaN too") {
    for (std::uint32_t first = 0; first < 0x10000; first += 16) {
        std::array<kv::half, 16> narrow{};
        for (std::uint32_t i = 0; i < 16; ++i)
            narrow[i].bits = static_cast<std::uint16_t>(first + i);
        const lanes wide = lanes_of(kv::f32x16::load(narrow.data()));
        for (std::uint32_t i = 0; i < 16; ++i)
            REQUIRE(same_bits(wide[i], kv::widen(narrow[i])));
    }
}

TEST_CASE("arithmetic is lane by lane") {
    const lanes a = some(11, 8.0f), b = some(12);
    const auto x = kv::f32x16::load(a.data()), y = kv::f32x16::load(b.data());
    const lanes added = lanes_of(x + y), taken = lanes_of(x - y), times = lanes_of(x * y), over = lanes_of(x / y);
    const lanes top = lanes_of(kv::max(x, y)), low = lanes_of(kv::min(x, y)), turned = lanes_of(-x);
    for (std::size_t i = 0; i < 16; ++i) {
        CHECK(same_bits(added[i], a[i] + b[i]));
        CHECK(same_bits(taken[i], a[i] - b[i]));
        CHECK(same_bits(times[i], a[i] * b[i]));
        CHECK(same_bits(over[i], a[i] / b[i]));
        CHECK(same_bits(top[i], std::max(a[i], b[i])));
        CHECK(same_bits(low[i], std::min(a[i], b[i])));
        CHECK(same_bits(turned[i], -a[i]));
    }
    CHECK(same_bits(lanes_of(-kv::f32x16::zero())[3], -0.0f));
}

TEST_CASE("within keeps a run of lanes and replaces all others, NaN too") {
    lanes from{};
    for (std::size_t first = 0; first <= 16; ++first)
        for (std::size_t last = first; last <= 16; ++last) {
            for (std::size_t i = 0; i < 16; ++i)
                from[i] = i >= first && i < last ? static_cast<float>(i) + 0.5f : numbers::not_a_number;
            const lanes kept = lanes_of(kv::within(kv::f32x16::load(from.data()), first, last, -numbers::infinity));
            for (std::size_t i = 0; i < 16; ++i)
                REQUIRE(kept[i] == (i >= first && i < last ? from[i] : -numbers::infinity));
        }
}

TEST_CASE("zero_below chooses, so that what is not chosen may be anything") {
    lanes x = some(21), key = some(22);
    key[4] = 0.25f;
    key[5] = numbers::not_a_number;
    x[6] = numbers::not_a_number, key[6] = -1.0f;
    x[7] = numbers::infinity, key[7] = -numbers::infinity;
    const lanes kept = lanes_of(kv::zero_below(kv::f32x16::load(x.data()), kv::f32x16::load(key.data()), 0.25f));
    for (std::size_t i = 0; i < 16; ++i)
        CHECK(same_bits(kept[i], key[i] >= 0.25f ? x[i] : 0.0f));
}

TEST_CASE("scaled_above is exact for every normal exponent, and zero below its bound") {
    lanes key{};
    key[3] = 0.25f, key[9] = 1.0f, key[10] = numbers::not_a_number;
    for (int n = -126; n <= 127; ++n) {
        const auto whole = kv::f32x16::broadcast(static_cast<float>(n));
        const auto shifted = kv::f32x16::broadcast(static_cast<float>(n) + 12582912.0f);
        const lanes made = lanes_of(
            kv::scaled_above(kv::f32x16::broadcast(1.25f), whole, shifted, kv::f32x16::load(key.data()), 0.25f));
        for (std::size_t i = 0; i < 16; ++i)
            REQUIRE(same_bits(made[i], i == 3 || i == 9 ? std::ldexp(1.25f, n) : 0.0f));
    }
}

TEST_CASE("sum is one fixed tree: i with i + 8, then 4, 2, 1") {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        const lanes from = some(seed, seed % 2 == 0 ? 1.0f : 0x1p20f);
        lanes tree = from;
        tree[3] = std::ldexp(tree[3], static_cast<int>(seed % 40) - 20); // makes the result depend on the order
        const lanes kept = tree;
        for (std::size_t half = 8; half > 0; half /= 2)
            for (std::size_t i = 0; i < half; ++i)
                tree[i] += tree[i + half];
        REQUIRE(same_bits(kv::sum(kv::f32x16::load(kept.data())), tree[0]));
    }
    // 2^24 + 1 rounds to 2^24: only the lanes added early count.
    lanes steps{};
    steps[0] = 0x1p24f, steps[1] = 1.0f, steps[9] = 1.0f;
    CHECK(kv::sum(kv::f32x16::load(steps.data())) == 0x1p24f + 2.0f);
    steps[9] = 0.0f, steps[8] = 1.0f;
    CHECK(kv::sum(kv::f32x16::load(steps.data())) == 0x1p24f);
}

TEST_CASE("largest finds the largest lane, wherever it is") {
    for (std::size_t at = 0; at < 16; ++at) {
        lanes from = some(at);
        from[at] = 3.0f + static_cast<float>(at);
        CHECK(kv::largest(kv::f32x16::load(from.data())) == from[at]);
        from.fill(-numbers::infinity);
        CHECK(kv::largest(kv::f32x16::load(from.data())) == -numbers::infinity);
        from[at] = -1e30f;
        CHECK(kv::largest(kv::f32x16::load(from.data())) == -1e30f);
    }
}

namespace {

// Four vectors with some lanes NaN, infinite, or zero of either sign.
std::array<std::array<float, 16>, 4> four_vectors(std::uint64_t seed) {
    std::array<std::array<float, 16>, 4> made{};
    for (std::size_t i = 0; i < 64; ++i) {
        float& x = made[i / 16][i % 16];
        x = numbers::uniform(seed, i);
        if (seed % 3 != 0 && i % 7 == seed % 7)
            x = i % 2 == 0 ? -0.0f : 0.0f;
        if (seed % 4 == 1 && i % 11 == seed % 11)
            x = numbers::not_a_number;
        if (seed % 8 == 2)
            x = -numbers::infinity;
    }
    return made;
}

} // namespace

TEST_CASE("the largest of several at once is that of each alone, whatever the lanes hold") {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        const auto from = four_vectors(seed);
        kv::f32x16 x[4];
        for (std::size_t i = 0; i < 4; ++i)
            x[i] = kv::f32x16::load(from[i].data());
        float most[4];
        kv::largest(x, most);
        for (std::size_t i = 0; i < 4; ++i)
            REQUIRE(same_bits(most[i], kv::largest(x[i])));
    }
}

TEST_CASE("the sums of several at once are those of each alone") {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        const auto from = four_vectors(seed);
        kv::f32x16 x[4];
        for (std::size_t i = 0; i < 4; ++i)
            x[i] = kv::f32x16::load(from[i].data());
        float all[4];
        kv::sum(x, all);
        for (std::size_t i = 0; i < 4; ++i) {
            const float alone = kv::sum(x[i]);
            REQUIRE((same_bits(all[i], alone) || (all[i] != all[i] && alone != alone)));
        }
    }
}

TEST_CASE("running sums are exact for integers, and have the bits of one fixed tree") {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const auto from = numbers::uniforms(seed, 16);
        std::vector<float> whole(16), want = from, sums(16), got(16);
        for (std::size_t i = 0; i < 16; ++i) {
            whole[i] = std::trunc(from[i] * 1000.0f);
            sums[i] = whole[i] + (i > 0 ? sums[i - 1] : 0.0f);
        }
        kv::running_sums(kv::f32x16::load(whole.data())).store(got.data());
        REQUIRE(got == sums);
        for (std::size_t by = 1; by < 16; by *= 2)
            for (std::size_t i = 16; i > by; --i)
                want[i - 1] += want[i - 1 - by];
        kv::running_sums(kv::f32x16::load(from.data())).store(got.data());
        REQUIRE(numbers::same_bits(got, want));
    }
}

TEST_CASE("what rises is the largest so far, and by how much") {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        const auto from = four_vectors(seed);
        kv::f32x16 x[4];
        for (std::size_t i = 0; i < 4; ++i)
            x[i] = kv::f32x16::load(from[i].data());
        for (float before : {-numbers::infinity, -0.0f, 0.0f, 0.9f, 2.0f}) {
            float tops[4], falls[4];
            const float last = kv::rising(x, before, tops, falls);
            for (std::size_t i = 0; i < 4; ++i) {
                const float most = kv::largest(x[i]), top = most > before ? most : before;
                REQUIRE(same_bits(tops[i], top));
                REQUIRE((same_bits(falls[i], before - top) || before == -numbers::infinity));
                before = top;
            }
            REQUIRE(same_bits(last, before));
        }
    }
}
