// SPDX-License-Identifier: MIT
#include <kvcache/kernel/entropy_code.hpp>
#include <kvcache/kernel/exponent_code.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

template <class Number>
std::vector<Number> of_bits(std::size_t size, unsigned seed, bool any) {
    std::mt19937 dice(seed);
    std::vector<Number> made(size);
    for (auto& x : made) {
        std::uint32_t bits = static_cast<std::uint32_t>(dice());
        if (!any) { // exponents near one
            unsigned small = 0;
            while (small < 20 && dice() % 2 == 0)
                ++small;
            bits = (bits & 0x807FFFFFu) | (127u - small) << 23;
        }
        if constexpr (std::is_same_v<Number, float>)
            x = std::bit_cast<float>(bits);
        else
            x = {static_cast<std::uint16_t>(bits >> 16)};
    }
    return made;
}

template <class Code>
using number_of = typename Code::number_type;

template <class Number>
bool same(const std::vector<Number>& a, const std::vector<Number>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Number)) == 0);
}

} // namespace

TEMPLATE_TEST_CASE("every bit pattern comes back, for any count", "", kv::exponent_code<float>,
                   kv::exponent_code<kv::bfloat16>, kv::entropy_code<float>, kv::entropy_code<kv::bfloat16>) {
    using code = TestType;
    using number = number_of<TestType>;
    for (const bool any : {false, true})
        for (const std::size_t size : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u, 47u, 48u, 63u, 64u, 1000u}) {
            const auto numbers = of_bits<number>(size, static_cast<unsigned>(size) + 1, any);
            const auto encoded = code::encode(numbers);
            REQUIRE(code::count(encoded).has_value());
            CHECK(*code::count(encoded) == size);
            std::vector<number> back(size);
            REQUIRE(code::decode(encoded, back).has_value());
            CHECK(same(back, numbers));
        }
}

TEST_CASE("numbers around one take 12 bits as bfloat16 and 28 as float32") {
    const auto small = of_bits<kv::bfloat16>(1 << 16, 1, false);
    const auto wide = of_bits<float>(1 << 16, 1, false);
    CHECK(2.0 * 65536 / static_cast<double>(kv::exponent_code<kv::bfloat16>::encode(small).size()) > 1.32);
    CHECK(4.0 * 65536 / static_cast<double>(kv::exponent_code<float>::encode(wide).size()) > 1.13);
    CHECK(2.0 * 65536 / static_cast<double>(kv::entropy_code<kv::bfloat16>::encode(small).size()) > 1.45);
    CHECK(4.0 * 65536 / static_cast<double>(kv::entropy_code<float>::encode(wide).size()) > 1.18);
}

TEMPLATE_TEST_CASE("a code that was cut, changed or is another's is refused", "", kv::exponent_code<float>,
                   kv::exponent_code<kv::bfloat16>, kv::entropy_code<float>, kv::entropy_code<kv::bfloat16>) {
    using code = TestType;
    using number = number_of<TestType>;
    const auto numbers = of_bits<number>(100, 3, true);
    const auto encoded = code::encode(numbers);
    std::vector<number> back(100);
    for (std::size_t size = 0; size < encoded.size(); ++size)
        CHECK_FALSE(code::decode(std::span(encoded).first(size), back).has_value());
    for (std::size_t bit = 0; bit < 8 * encoded.size(); ++bit) {
        auto damaged = encoded;
        damaged[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        CHECK_FALSE(code::decode(damaged, back).has_value());
    }
    std::vector<number> fewer(99);
    CHECK(code::decode(encoded, fewer).error().code == kv::error_code::out_of_range);
    using other = std::conditional_t<std::is_same_v<number, float>, kv::bfloat16, float>;
    CHECK(kv::exponent_code<other>::count(encoded).error().field == "width");
    CHECK(kv::entropy_code<other>::count(encoded).error().field == "width");
}

TEST_CASE("random bytes are refused, also those whose checksum was made to fit") {
    std::mt19937 dice(5);
    std::vector<float> back(64);
    std::size_t accepted = 0;
    for (int again = 0; again < 2000; ++again) {
        auto encoded = kv::exponent_code<float>::encode(of_bits<float>(64, 9, again % 2 == 0));
        for (int n = 0; n < 3; ++n) // inconsistent codes and escapes
            encoded[encoded.size() - 1 - dice() % 40] = static_cast<std::byte>(dice());
        const std::uint64_t sum =
            kv::seeded_hash(kv::seeded_hash(0, std::span(encoded).first(28)), std::span(encoded).subspan(36));
        std::memcpy(encoded.data() + 28, &sum, sizeof sum);
        accepted += kv::exponent_code<float>::decode(encoded, back).has_value();
    }
    CHECK(accepted < 2000);
}

TEST_CASE("a stream whose checksum and lengths were made to fit is read to its end and no further") {
    constexpr std::size_t size = 200, guard = 64;
    constexpr float untouched = -7.25f;
    std::mt19937 dice(6);
    std::size_t accepted = 0, refused = 0;
    for (int again = 0; again < 2000; ++again) {
        const auto numbers = of_bits<float>(size, 9, again % 2 == 0);
        auto encoded = kv::entropy_code<float>::encode(numbers);
        for (int n = 0; n < 4; ++n) // the lengths, or a stream
            encoded[n % 2 == 0 ? 24 + dice() % 128 : encoded.size() - 1 - dice() % 100] =
                static_cast<std::byte>(dice());
        const std::uint64_t sum =
            kv::seeded_hash(kv::seeded_hash(0, std::span(encoded).first(152)), std::span(encoded).subspan(160));
        std::memcpy(encoded.data() + 152, &sum, sizeof sum);
        std::vector<float> memory(guard + size + guard, untouched);
        const auto back = std::span(memory).subspan(guard, size);
        const auto done = kv::entropy_code<float>::decode(encoded, back); // the sanitizers check what it reads
        ++(done ? accepted : refused);
        if (!done)
            CHECK(done.error().code == kv::error_code::malformed);
        const auto differs = [](float a, float b) { // in sign or fraction, which no stream holds
            return ((std::bit_cast<std::uint32_t>(a) ^ std::bit_cast<std::uint32_t>(b)) & 0x807FFFFFu) != 0;
        };
        if (done)
            CHECK(std::ranges::mismatch(back, numbers, std::not_fn(differs)).in1 == back.end());
        CHECK(std::ranges::all_of(std::span(memory).first(guard), [](float x) { return x == untouched; }));
        CHECK(std::ranges::all_of(std::span(memory).last(guard), [](float x) { return x == untouched; }));
    }
    CHECK(accepted > 0);
    CHECK(refused > 0);
}
