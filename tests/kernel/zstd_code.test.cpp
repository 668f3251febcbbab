// SPDX-License-Identifier: MIT
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/zstd_code.hpp>

#include <cstring>
#include <random>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using wide = kv::zstd_code<float>;

void fit_checksum(std::vector<std::byte>& encoded) {
    const std::uint64_t sum =
        kv::seeded_hash(kv::seeded_hash(0, std::span(encoded).first(16)), std::span(encoded).subspan(24));
    std::memcpy(encoded.data() + 16, &sum, sizeof sum);
}

} // namespace

TEST_CASE("zstd keeps every bit, at any level and count") {
    for (const std::size_t size : {0u, 1u, 2u, 255u, 256u, 257u, 5000u})
        for (const int level : {1, 3, 19}) {
            auto numbers = numbers::uniforms(size, size);
            for (std::size_t i = 0; i < size; i += 7)
                numbers[i] = i % 2 == 0 ? numbers::not_a_number : -0.0f;
            const auto encoded = wide::encode(numbers, level);
            REQUIRE(wide::count(encoded).has_value());
            CHECK(*wide::count(encoded) == size);
            std::vector<float> back(size);
            REQUIRE(wide::decode(encoded, back).has_value());
            CHECK((size == 0 || numbers::same_bits(back, numbers)));
        }
    const std::vector<float> zeros(4096);
    CHECK(wide::encode(zeros).size() < 100);
}

TEST_CASE("what zstd did not write, or wrote otherwise, is refused") {
    const auto encoded = wide::encode(numbers::uniforms(3, 100));
    std::vector<float> back(100);
    REQUIRE(wide::decode(encoded, back).has_value());
    for (std::size_t size = 0; size < encoded.size(); ++size)
        CHECK_FALSE(wide::decode(std::span(encoded).first(size), back).has_value());
    for (std::size_t bit = 0; bit < 8 * encoded.size(); ++bit) {
        auto damaged = encoded;
        damaged[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        CHECK_FALSE(wide::decode(damaged, back).has_value());
    }
    std::vector<float> fewer(99);
    CHECK(wide::decode(encoded, fewer).error().code == kv::error_code::out_of_range);
    CHECK(kv::zstd_code<kv::bfloat16>::count(encoded).error().field == "width");
}

TEST_CASE("frames whose checksum was made to fit are refused or read, and never past their room") {
    std::mt19937 dice(5);
    std::vector<float> back(500);
    const auto whole = wide::encode(std::vector<float>(500, 1.5f));
    const auto rough = wide::encode(numbers::uniforms(4, 500));
    for (int again = 0; again < 3000; ++again) {
        auto encoded = again % 2 == 0 ? whole : rough;
        for (int n = 0; n < 3; ++n)
            encoded[8 + dice() % (encoded.size() - 8)] = static_cast<std::byte>(dice());
        fit_checksum(encoded);
        (void)wide::decode(encoded, back); // checked by the sanitizers
    }
    auto longer = whole; // the count and the frame must agree
    longer[8] = static_cast<std::byte>(std::to_integer<unsigned>(longer[8]) + 1);
    fit_checksum(longer);
    CHECK(wide::count(longer).error().field == "count");
}
