// SPDX-License-Identifier: MIT
#include <kvcache/kernel/gemm_packing.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

TEMPLATE_TEST_CASE("a packed strip holds its rows bit for bit, whatever their number, length and alignment", "", float,
                   kv::bfloat16, kv::half) {
    constexpr std::size_t wide = sizeof(TestType);
    const std::size_t width = GENERATE(16u, 32u, 48u);
    for (const std::size_t inputs : {0u, 1u, 3u, 4u, 7u, 8u, 31u, 64u, 65u, 130u, 200u, 576u})
        for (const std::size_t given : {width, width - 1, width - 11, std::size_t{0}})
            for (const std::size_t offset : {0u, 1u}) {
                INFO(inputs << " inputs of " << given << " of " << width << " rows, " << offset << " bytes off");
                std::vector<std::byte> stored(width * inputs * wide + 1);
                for (std::size_t i = 0; i < stored.size(); ++i)
                    stored[i] = static_cast<std::byte>(numbers::hashed(inputs, i));
                std::vector<const std::byte*> rows(width);
                for (std::size_t r = 0; r < given; ++r) // the last first, with a gap
                    rows[r == 3 ? width - 1 : r] = stored.data() + offset + (given - 1 - r) * inputs * wide;
                if (given == width)
                    rows[3] = nullptr;
                std::vector<TestType> strip(width * inputs + 1);
                std::memset(static_cast<void*>(strip.data()), 0x5a, strip.size() * wide);
                const TestType behind = strip.back();
                kv::pack_b<TestType>(rows, inputs, strip.data());
                std::size_t wrong = 0;
                for (std::size_t r = 0; r < width; ++r)
                    for (std::size_t k = 0; k < inputs; ++k) {
                        TestType want{};
                        if (rows[r] != nullptr)
                            std::memcpy(static_cast<void*>(&want), rows[r] + k * wide, wide);
                        wrong += std::memcmp(&want, &strip[k * width + r], wide) != 0;
                    }
                CHECK(wrong == 0);
                CHECK(std::memcmp(&behind, &strip.back(), wide) == 0);
            }
}
