// SPDX-License-Identifier: MIT
#include <kvcache/kernel/delta_code.hpp>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// Rows that drift from one to the next, as keys of adjacent tokens do. (rows, channels)
std::vector<float> drifting(std::size_t rows, std::size_t channels, std::uint64_t seed) {
    auto made = numbers::uniforms(seed, rows * channels);
    for (std::size_t i = channels; i < made.size(); ++i)
        made[i] = std::fma(made[i - channels], 0.875f, made[i] * 0.25f);
    return made;
}

} // namespace

TEST_CASE("rows come back within half a bin, anchors within half a step") {
    for (const std::size_t rows : {0u, 1u, 9u, 10u, 11u, 64u, 257u})
        for (const std::size_t channels : {1u, 24u, 64u})
            for (const float bin : {0.25f, 0.5f, 1.0f}) {
                const auto truth = drifting(rows, channels, rows + channels);
                const auto encoded = kv::delta_code::encode(truth, channels, {.bin = bin});
                const auto size = kv::delta_code::describe(encoded);
                REQUIRE(size.has_value());
                CHECK(size->rows == rows);
                CHECK(size->channels == channels);
                std::vector<float> back(truth.size());
                REQUIRE(kv::delta_code::decode(encoded, back).has_value());
                double error = 0, squares = 0;
                for (std::size_t i = 0; i < back.size(); ++i) {
                    error += (double{back[i]} - double{truth[i]}) * (double{back[i]} - double{truth[i]});
                    squares += double{truth[i]} * double{truth[i]};
                }
                CHECK(error <= double{bin} * double{bin} / 3 * squares + 1e-3 * squares);
            }
}

TEST_CASE("drifting rows take two to four bits a number") {
    const auto truth = drifting(2048, 64, 1);
    const auto bits = [&](float bin) {
        return 8.0 * static_cast<double>(kv::delta_code::encode(truth, 64, {.bin = bin}).size()) /
               static_cast<double>(truth.size());
    };
    CHECK(bits(0.5f) < 4.0);
    CHECK(bits(1.0f) < 2.9);
    CHECK(bits(1.0f) < bits(0.5f));
    CHECK(kv::delta_options::of_layer(0, 12).bin < kv::delta_options::of_layer(11, 12).bin);
}

TEST_CASE("rows that were cut or changed are refused") {
    const auto encoded = kv::delta_code::encode(drifting(25, 8, 2), 8, {});
    std::vector<float> back(25 * 8);
    REQUIRE(kv::delta_code::decode(encoded, back).has_value());
    for (std::size_t size = 0; size < encoded.size(); ++size)
        CHECK_FALSE(kv::delta_code::decode(std::span(encoded).first(size), back).has_value());
    for (std::size_t bit = 0; bit < 8 * encoded.size(); ++bit) {
        auto damaged = encoded;
        damaged[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        CHECK_FALSE(kv::delta_code::decode(damaged, back).has_value());
    }
    std::vector<float> fewer(24 * 8);
    CHECK(kv::delta_code::decode(encoded, fewer).error().code == kv::error_code::out_of_range);
}

TEST_CASE("bytes whose checksum was made to fit are read to their end and no further") {
    std::mt19937 dice(5);
    std::vector<float> back(25 * 8);
    for (int again = 0; again < 2000; ++again) {
        auto encoded = kv::delta_code::encode(drifting(25, 8, 3), 8, {});
        for (int n = 0; n < 4; ++n)
            encoded[dice() % encoded.size()] = static_cast<std::byte>(dice());
        const std::uint64_t sum =
            kv::seeded_hash(kv::seeded_hash(0, std::span(encoded).first(148)), std::span(encoded).subspan(156));
        std::memcpy(encoded.data() + 148, &sum, sizeof sum);
        (void)kv::delta_code::decode(encoded, back); // checked by the sanitizers
    }
}
