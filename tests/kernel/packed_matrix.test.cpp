// SPDX-License-Identifier: MIT
#include <kvcache/core/shared_memory.hpp>
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

TEST_CASE("a packed matrix is stored in strips of panels, inputs ascending, zeros after the last output") {
    constexpr std::size_t inputs = 5, strip_width = kv::packed_matrix<float>::strip_width;
    for (std::size_t outputs = 1; outputs <= 3 * strip_width + 1; ++outputs) {
        INFO(outputs << " outputs");
        kv::packed_matrix<float> packed(outputs, inputs);
        std::vector<float> row(inputs);
        for (std::size_t n = 0; n < outputs; ++n) {
            for (std::size_t k = 0; k < inputs; ++k)
                row[k] = static_cast<float>(100 * n + k + 1);
            packed.set_row(n, row);
        }
        REQUIRE(packed.outputs() == outputs);
        REQUIRE(packed.inputs() == inputs);
        REQUIRE(packed.panels() == (outputs + 15) / 16);
        REQUIRE(packed.bytes() == packed.panels() * 16 * inputs * sizeof(float));
        std::size_t output = 0, wrong = 0;
        for (std::size_t s = 0; s < packed.strips(); ++s) {
            REQUIRE(packed.width(s) <= strip_width);
            REQUIRE(packed.strip(s) == packed.strip(0) + output * inputs);
            for (std::size_t k = 0; k < inputs; ++k)
                for (std::size_t n = 0; n < packed.width(s); ++n)
                    wrong += packed.strip(s)[k * packed.width(s) + n] !=
                             (output + n < outputs ? static_cast<float>(100 * (output + n) + k + 1) : 0.0f);
            output += packed.width(s);
        }
        CHECK(output == packed.panels() * 16);
        CHECK(wrong == 0);
    }
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
    CHECK(copy.strip(0) != owner.strip(0));
    std::vector<float> last(3);
    copy.row(39, last);
    CHECK(last == std::vector<float>{1.0f, 2.0f, 3.0f});

    auto memory = kv::shared_memory(owner.bytes(), nullptr);
    std::memcpy(memory.get(), owner.strip(0), owner.bytes());
    const std::weak_ptr<const void> alive = memory;
    {
        kv::packed_matrix<float> view(40, 3, reinterpret_cast<const float*>(memory.get()), memory);
        memory.reset();
        const auto shared = view;
        CHECK(shared.strip(0) == view.strip(0));
        CHECK(shared.bytes() == owner.bytes());
        std::vector<float> row(3);
        shared.row(39, row);
        CHECK(row == std::vector<float>{1.0f, 2.0f, 3.0f});
        CHECK_THROWS_AS(view.set_row(0, row), kv::contract_violation);
        CHECK_FALSE(alive.expired());
    }
    CHECK(alive.expired());
}
