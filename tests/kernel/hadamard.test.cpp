// SPDX-License-Identifier: MIT
#include <kvcache/kernel/hadamard.hpp>

#include <bit>
#include <span>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a row is multiplied by the Sylvester-Hadamard matrix of each block") {
    for (const std::size_t size : {1u, 2u, 4u, 8u, 16u, 24u, 32u, 48u, 64u, 80u, 96u, 128u, 192u, 256u, 512u}) {
        CAPTURE(size);
        const auto row = numbers::uniforms(size, size);
        const std::size_t block = kv::hadamard_block(size);
        CHECK(size % block == 0);
        CHECK((size / block) % 2 == 1);
        auto turned = row;
        kv::hadamard(std::span(turned));
        double worst = 0.0;
        for (std::size_t i = 0; i < size; ++i) {
            double want = 0.0;
            for (std::size_t j = i / block * block; j < i / block * block + block; ++j)
                want += (std::popcount(i % block & j % block) % 2 == 0 ? 1.0 : -1.0) * static_cast<double>(row[j]);
            want /= std::sqrt(static_cast<double>(block));
            worst = std::max(worst, std::abs(want - static_cast<double>(turned[i])));
        }
        CHECK(worst < 1e-6);
        kv::hadamard(std::span(turned));
        for (std::size_t i = 0; i < size; ++i)
            CHECK(std::abs(turned[i] - row[i]) < 1e-6f);
    }
}

TEST_CASE("whatever the width of the vectors, a row turns to the same bits") {
    for (const std::size_t size : {8u, 16u, 32u, 64u, 128u, 256u}) {
        auto row = numbers::uniforms(size + 1, size), plain = row;
        kv::hadamard(std::span(row));
        for (std::size_t apart = 1; apart < size; apart *= 2)
            kv::detail::hadamard_stage(plain.data(), size, apart);
        for (float& x : plain)
            x *= 1.0f / std::sqrt(static_cast<float>(size));
        CHECK(numbers::same_bits(row, plain));
    }
}
