// SPDX-License-Identifier: MIT
#include <kvcache/kernel/packed_matrix.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a packed matrix lies in panels of 16 outputs, inputs ascending, zeros behind the last output") {
    constexpr std::size_t outputs = 70, inputs = 5;
    kv::packed_matrix<float> packed(outputs, inputs);
    std::vector<float> row(inputs);
    for (std::size_t n = 0; n < outputs; ++n) {
        for (std::size_t k = 0; k < inputs; ++k)
            row[k] = static_cast<float>(100 * n + k + 1);
        packed.set_row(n, row);
    }
    CHECK(packed.outputs() == outputs);
    CHECK(packed.inputs() == inputs);
    CHECK(packed.panels() == 5);
    CHECK(packed.bytes() == 5 * 16 * inputs * sizeof(float));
    for (std::size_t n = 0; n < 80; ++n)
        for (std::size_t k = 0; k < inputs; ++k)
            CHECK(packed.panel(n / 16)[k * 16 + n % 16] == (n < outputs ? static_cast<float>(100 * n + k + 1) : 0.0f));
}

TEST_CASE("a packed row reads back as it was set, widened") {
    kv::packed_matrix<kv::bfloat16> packed(33, 7);
    std::vector<kv::bfloat16> row(7);
    std::vector<float> back(7);
    for (std::size_t n = 0; n < 33; ++n) {
        for (std::size_t k = 0; k < 7; ++k)
            row[k].bits = static_cast<std::uint16_t>(0x3f80 + n * 7 + k);
        packed.set_row(n, row);
    }
    for (std::size_t n = 0; n < 33; ++n) {
        packed.row(n, back);
        for (std::size_t k = 0; k < 7; ++k)
            CHECK(std::bit_cast<std::uint32_t>(back[k]) == (0x3f80 + n * 7 + k) << 16);
    }
}

TEST_CASE("a row of another length or place is a caller's mistake") {
    kv::packed_matrix<float> packed(4, 3);
    std::vector<float> three(3), four(4);
    CHECK_THROWS_AS(packed.set_row(0, four), kv::contract_violation);
    CHECK_THROWS_AS(packed.set_row(4, three), kv::contract_violation);
    CHECK_THROWS_AS(packed.row(4, three), kv::contract_violation);
    CHECK_THROWS_AS(packed.row(0, four), kv::contract_violation);
}

TEST_CASE("a view looks at weights that its keeper owns, and copies of it share them") {
    kv::packed_matrix<float> owner(40, 3);
    owner.set_row(39, std::vector<float>{1.0f, 2.0f, 3.0f});
    const auto copy = owner;
    CHECK(copy.panel(0) != owner.panel(0));
    CHECK(copy.panel(2)[7 + 16] == 2.0f);

    auto memory = kv::shared_memory(owner.bytes(), nullptr);
    std::memcpy(memory.get(), owner.panel(0), owner.bytes());
    const std::weak_ptr<const void> alive = memory;
    {
        kv::packed_matrix<float> view(40, 3, reinterpret_cast<const float*>(memory.get()), memory);
        memory.reset();
        const auto shared = view;
        CHECK(shared.panel(0) == view.panel(0));
        CHECK(shared.bytes() == owner.bytes());
        std::vector<float> row(3);
        shared.row(39, row);
        CHECK(row == std::vector<float>{1.0f, 2.0f, 3.0f});
        CHECK_THROWS_AS(view.set_row(0, row), kv::contract_violation);
        CHECK_FALSE(alive.expired());
    }
    CHECK(alive.expired());
}
