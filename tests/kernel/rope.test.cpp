// SPDX-License-Identifier: MIT
#include <kvcache/kernel/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("standard frequencies are theta to the power -2 i / head_dim") {
    for (const std::size_t dim : {2u, 24u, 64u, 128u}) {
        const auto f = kv::rope::standard_frequencies(dim, 10000.0);
        REQUIRE(f.size() == dim / 2);
        CHECK(f[0] == 1.0);
        for (std::size_t i = 0; i < f.size(); ++i)
            CHECK(f[i] ==
                  Approx(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim))).epsilon(1e-14));
    }
    CHECK_THROWS_AS(kv::rope::standard_frequencies(7, 10000.0), kv::contract_violation);
}

TEST_CASE("a rotation is the cosine and the sine of position times frequency, to half a unit in the last place") {
    const kv::rope rope(kv::rope::standard_frequencies(64, 500000.0));
    std::vector<float> rotation(64);
    for (const std::int64_t position : {0, 1, 2, 17, 1023, 4096, 131071, 1 << 20, 1 << 29, -1, -1000, -(1 << 20)}) {
        rope.fill(position, rotation);
        for (std::size_t i = 0; i < 32; ++i) {
            const auto angle = static_cast<long double>(static_cast<double>(position) * rope.frequencies()[i]);
            CHECK(std::abs(static_cast<double>(static_cast<long double>(rotation[i]) - std::cos(angle))) < 3.1e-8);
            CHECK(std::abs(static_cast<double>(static_cast<long double>(rotation[32 + i]) - std::sin(angle))) < 3.1e-8);
        }
    }
    std::vector<float> narrow(32);
    CHECK_THROWS_AS(rope.fill(0, narrow), kv::contract_violation);
}

TEST_CASE("rotate_head turns pair i and i + half, at every size, also in place") {
    for (const std::size_t dim : {2u, 8u, 16u, 24u, 32u, 48u, 64u, 80u, 96u, 128u, 130u, 256u}) {
        const std::size_t half = dim / 2;
        const kv::rope rope(kv::rope::standard_frequencies(dim, 10000.0));
        std::vector<float> rotation(dim), out(dim + 1, 9.0f);
        rope.fill(77, rotation);
        const auto head = numbers::uniforms(dim, dim, 4.0f);
        kv::rotate_head(head, rotation, {out.data(), dim});
        for (std::size_t i = 0; i < half; ++i) {
            const float x = head[i], y = head[half + i], c = rotation[i], s = rotation[half + i];
            volatile float ys = y * s, xs = x * s; // rounded before they are added
            CHECK(numbers::same_bits(out[i], std::fma(x, c, -ys)));
            CHECK(numbers::same_bits(out[half + i], std::fma(y, c, xs)));
            const double turned =
                static_cast<double>(x) * static_cast<double>(c) - static_cast<double>(y) * static_cast<double>(s);
            CHECK(std::abs(static_cast<double>(out[i]) - turned) < 1e-6);
        }
        CHECK(out[dim] == 9.0f);
        auto in_place = head;
        kv::rotate_head(in_place, rotation, in_place);
        CHECK(numbers::same_bits(in_place, {out.data(), dim}));
    }
}

TEST_CASE("position zero turns nothing") {
    const kv::rope rope(kv::rope::standard_frequencies(24, 10000.0));
    std::vector<float> rotation(24), out(24);
    rope.fill(0, rotation);
    const auto head = numbers::uniforms(1, 24);
    kv::rotate_head(head, rotation, out);
    CHECK(out == head);
}

TEST_CASE("scores depend on the distance of two positions, not on where they are") {
    const std::size_t dim = 64;
    const kv::rope rope(kv::rope::standard_frequencies(dim, 10000.0));
    const auto q = numbers::uniforms(1, dim), k = numbers::uniforms(2, dim);
    const auto score = [&](std::int64_t at, std::int64_t from) {
        std::vector<float> rotation(dim), turned_q(dim), turned_k(dim);
        rope.fill(at, rotation);
        kv::rotate_head(q, rotation, turned_q);
        rope.fill(from, rotation);
        kv::rotate_head(k, rotation, turned_k);
        double sum = 0.0;
        for (std::size_t d = 0; d < dim; ++d)
            sum += static_cast<double>(turned_q[d]) * static_cast<double>(turned_k[d]);
        return sum;
    };
    for (const std::int64_t move : {1, 100, 100000, 10000000, -100000})
        CHECK(score(50 + move, 20 + move) == Approx(score(50, 20)).margin(1e-5));
}

TEST_CASE("a query rotated back by the offset of its keys gives the scores of rotated keys, to 1e-5 of their rms") {
    for (const std::size_t dim : {16u, 64u, 128u, 256u})
        for (const double theta : {10000.0, 500000.0}) {
            const kv::rope rope(kv::rope::standard_frequencies(dim, theta));
            const auto turned = [&](const std::vector<float>& head, std::int64_t position) {
                std::vector<float> rotation(dim), out(dim);
                rope.fill(position, rotation);
                kv::rotate_head(head, rotation, out);
                return out;
            };
            const auto score = [&](const std::vector<float>& a, const std::vector<float>& b) {
                double sum = 0.0;
                for (std::size_t d = 0; d < dim; ++d)
                    sum += static_cast<double>(a[d]) * static_cast<double>(b[d]);
                return sum;
            };
            for (const std::int64_t base : {-8192, -64, -1, 1, 37, 4096, 131072}) {
                double worst = 0.0, squares = 0.0;
                constexpr std::int64_t keys = 100;
                for (std::int64_t at = 0; at < keys; ++at) {
                    const auto key = numbers::uniforms(static_cast<std::uint32_t>(at), dim);
                    const auto query = numbers::uniforms(static_cast<std::uint32_t>(1000 + at), dim);
                    const std::int64_t asked = 140000 + at; // position of the query; its key is at 20000 + at
                    const double moved = score(turned(query, asked), turned(key, 20000 + at + base));
                    const double back = score(turned(query, asked - base), turned(key, 20000 + at));
                    worst = std::max(worst, std::abs(moved - back));
                    squares += moved * moved;
                }
                CHECK(worst < 1e-5 * std::sqrt(squares / static_cast<double>(keys)));
            }
        }
}
