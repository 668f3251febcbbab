// SPDX-License-Identifier: MIT
#include <kvcache/kernel/pack_panel.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

TEMPLATE_TEST_CASE("a packed panel holds its rows bit for bit, whatever their length and alignment", "", float,
                   kv::bfloat16, kv::half) {
    constexpr std::size_t wide = sizeof(TestType);
    for (const std::size_t inputs : {0u, 1u, 3u, 4u, 7u, 8u, 31u, 64u, 65u, 130u, 200u, 576u})
        for (const std::size_t given : {16u, 15u, 5u, 0u})
            for (const std::size_t offset : {0u, 1u}) {
                INFO(inputs << " inputs of " << given << " rows, " << offset << " bytes off");
                std::vector<std::byte> stored(16 * inputs * wide + 1);
                for (std::size_t i = 0; i < stored.size(); ++i)
                    stored[i] = static_cast<std::byte>(numbers::hashed(inputs, i));
                std::array<const std::byte*, 16> rows = {};
                for (std::size_t r = 0; r < given; ++r) // the last first, with a gap
                    rows[r == 3 ? 15 : r] = stored.data() + offset + (given - 1 - r) * inputs * wide;
                if (given == 16)
                    rows[3] = nullptr;
                std::vector<TestType> panel(16 * inputs + 1);
                std::memset(static_cast<void*>(panel.data()), 0x5a, panel.size() * wide);
                const TestType behind = panel.back();
                kv::pack_panel<TestType>(rows, inputs, panel.data());
                std::size_t wrong = 0;
                for (std::size_t r = 0; r < 16; ++r)
                    for (std::size_t k = 0; k < inputs; ++k) {
                        TestType want{};
                        if (rows[r] != nullptr)
                            std::memcpy(static_cast<void*>(&want), rows[r] + k * wide, wide);
                        wrong += std::memcmp(&want, &panel[k * 16 + r], wide) != 0;
                    }
                CHECK(wrong == 0);
                CHECK(std::memcmp(&behind, &panel.back(), wide) == 0);
            }
}
