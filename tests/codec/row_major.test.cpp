// SPDX-License-Identifier: MIT
#include <kvcache/codec/row_major.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using six = std::tuple<kv::codec::nhd_f32, kv::codec::nhd_f16, kv::codec::nhd_bf16, kv::codec::hnd_f32,
                       kv::codec::hnd_f16, kv::codec::hnd_bf16>;

/// The format's own number nearest to `x`, ties to even, in double precision. `digits`: significant bits; `least`: the
/// exponent of the smallest subnormal.
float nearest(float x, int digits, int least, double largest) {
    if (x == 0.0f || std::isnan(x))
        return x;
    int exponent = 0;
    std::frexp(double{x}, &exponent);
    const double step = std::ldexp(1.0, std::max(exponent - digits, least));
    return static_cast<float>(std::clamp(std::nearbyint(double{x} / step) * step, -largest, largest));
}

template <class Number>
float rounded(float x) {
    if constexpr (std::is_same_v<Number, kv::half>)
        return nearest(x, 11, -24, 65504.0);
    else if constexpr (std::is_same_v<Number, kv::bfloat16>)
        return nearest(x, 8, -133, 0x1.FEp127);
    else
        return x;
}

/// Numbers of every size, ties of the 16-bit formats among them.
float any_number(std::mt19937& dice) {
    const auto bits = static_cast<std::uint32_t>(dice());
    switch (dice() % 4) {
    case 0: {
        const float x = kvcache::bit_cast<float>(bits);
        return std::isfinite(x) ? x : -0.0f;
    }
    case 1: // in the range of binary16, often a tie
        return kvcache::bit_cast<float>((bits & 0x80000000u) | (100 + bits % 30) << 23 | (bits >> 8 & 0x7FFu) << 12);
    case 2: // a tie of bfloat16
        return kvcache::bit_cast<float>((bits & 0x80000000u) | (100 + bits % 60) << 23 | (bits >> 8 & 0xFFu) << 15);
    default:
        return static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-29f;
    }
}

bool same_bits(float a, float b) {
    return kvcache::bit_cast<std::uint32_t>(a) == kvcache::bit_cast<std::uint32_t>(b);
}

constexpr kv::page_shape odd{.layers = 2, .kv_heads = 3, .head_dim = 5, .tokens = 32};

/// A page in which the key of (layer, head, row) begins with this number, and its value with the negative number.
constexpr float first_of(std::uint32_t layer, std::uint32_t head, std::uint32_t row) {
    return static_cast<float>(1 + layer * 100 + head * 40 + row);
}

template <class State>
kv::aligned_vector<std::byte> numbered(const State& state) {
    kv::aligned_vector<std::byte> page(state.page_bytes());
    for (std::uint32_t layer = 0; layer < odd.layers; ++layer)
        for (std::uint32_t head = 0; head < odd.kv_heads; ++head)
            for (std::uint32_t row = 0; row < odd.tokens; ++row) {
                const float x = first_of(layer, head, row);
                state.encode(page, {kv::layer_id{layer}, kv::head_id{head}, row}, std::vector{x, 1.f, 2.f, 3.f, 4.f},
                             std::vector{-x, -1.f, -2.f, -3.f, -4.f});
            }
    return page;
}

template <class Number>
float number_at(std::span<const std::byte> page, std::size_t index) {
    Number number;
    std::memcpy(&number, page.data() + index * sizeof number, sizeof number);
    return kv::widen(number);
}

template <class Policy, class Place>
void check_places(Place place) {
    const auto state = Policy{}.open(odd);
    using number = typename decltype(state)::number;
    REQUIRE(state.page_bytes() == 2 * 2 * 32 * 3 * 5 * sizeof(number));
    const auto page = numbered(state);
    bool right = true;
    for (std::uint32_t layer = 0; layer < odd.layers; ++layer)
        for (std::uint32_t head = 0; head < odd.kv_heads; ++head)
            for (std::uint32_t row = 0; row < odd.tokens; ++row) {
                const std::size_t key = layer * 960 + place(head, row), value = key + 480;
                const float x = first_of(layer, head, row);
                right = right && number_at<number>(page, key) == x && number_at<number>(page, value) == -x;
                for (std::size_t d = 1; d < 5; ++d)
                    right = right && number_at<number>(page, key + d) == static_cast<float>(d) &&
                            number_at<number>(page, value + d) == -static_cast<float>(d);
                const kv::page_row at{kv::layer_id{layer}, kv::head_id{head}, row};
                const auto* const base = reinterpret_cast<const number*>(page.data());
                right = right && state.key_row(page, at) == base + key && state.value_row(page, at) == base + value;
            }
    CHECK(right);
    CHECK(state.row_stride() == place(0, 1));
}

} // namespace

TEST_CASE("a page of NHD is the keys of all tokens, then their values, the heads of a token together") {
    const auto place = [](std::size_t head, std::size_t row) { return row * 15 + head * 5; };
    check_places<kv::codec::nhd_f32>(place);
    check_places<kv::codec::nhd_f16>(place);
    check_places<kv::codec::nhd_bf16>(place);
}

TEST_CASE("a page of HND is the keys of all tokens, then their values, the tokens of a head together") {
    const auto place = [](std::size_t head, std::size_t row) { return head * 160 + row * 5; };
    check_places<kv::codec::hnd_f32>(place);
    check_places<kv::codec::hnd_f16>(place);
    check_places<kv::codec::hnd_bf16>(place);
}

TEMPLATE_LIST_TEST_CASE("a row-major page has no padding", "", six) {
    using number = typename TestType::state::number;
    const auto bytes = [](kv::page_shape shape) { return TestType{}.open(shape).page_bytes(); };
    CHECK(bytes({.layers = 1, .kv_heads = 1, .head_dim = 8, .tokens = 16}) == 2 * 16 * 8 * sizeof(number));
    CHECK(bytes({.layers = 3, .kv_heads = 2, .head_dim = 1, .tokens = 48}) == 3 * 2 * 2 * 48 * sizeof(number));
}

TEMPLATE_LIST_TEST_CASE("rows of any numbers come back rounded to nearest even", "", six) {
    using number = typename TestType::state::number;
    const unsigned seed = 5;
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    const kv::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 40, .tokens = 32};
    const auto state = TestType{}.open(shape);
    kv::aligned_vector<std::byte> page(state.page_bytes());
    std::size_t wrong = 0;
    for (std::size_t round = 0; round < 2000; ++round) {
        const kv::page_row at{kv::layer_id{static_cast<std::uint32_t>(dice() % 2)},
                              kv::head_id{static_cast<std::uint32_t>(dice() % 2)},
                              static_cast<std::uint32_t>(dice() % 32)};
        std::vector<float> key(40), value(40);
        kvcache::ranges::generate(key, [&] { return any_number(dice); });
        kvcache::ranges::generate(value, [&] { return any_number(dice); });
        state.encode(page, at, key, value);
        for (std::size_t d = 0; d < 40; ++d)
            wrong += !same_bits(kv::widen(state.key_row(page, at)[d]), rounded<number>(key[d])) +
                     !same_bits(kv::widen(state.value_row(page, at)[d]), rounded<number>(value[d]));
    }
    CHECK(wrong == 0);
    const std::vector<float> odd_numbers(40, std::numeric_limits<float>::quiet_NaN());
    state.encode(page, {}, odd_numbers, odd_numbers);
    CHECK(std::isnan(kv::widen(*state.key_row(page, {}))));
}

TEMPLATE_LIST_TEST_CASE("a tile of a row-major page has keys by number and values padded with zeros", "", six) {
    const auto state = TestType{}.open(odd);
    const auto page = numbered(state);
    std::vector<float> keys(5 * 16, std::nanf("")), values(16 * 16, std::nanf(""));
    bool right = true;
    for (std::uint32_t head = 0; head < odd.kv_heads; ++head)
        for (std::uint32_t tile = 0; tile < 2; ++tile) {
            const kv::page_tile at{kv::layer_id{1}, kv::head_id{head}, tile};
            const float* const k = state.keys(page, at, keys);
            const float* const v = state.values(page, at, values);
            for (std::uint32_t lane = 0; lane < 16; ++lane)
                for (std::size_t d = 0; d < 16; ++d) {
                    const float x = d == 0 ? first_of(1, head, tile * 16 + lane) : static_cast<float>(d);
                    right = right && v[lane * 16 + d] == (d < 5 ? -x : 0.0f);
                    if (d < 5)
                        right = right && k[d * 16 + lane] == x;
                }
        }
    CHECK(right);
    CHECK_THROWS_AS(state.keys(page, {}, std::span(keys).first(79)), kv::contract_violation);
    CHECK_THROWS_AS(state.values(page, {}, std::span(values).first(255)), kv::contract_violation);
}

TEMPLATE_LIST_TEST_CASE("a copy of the first rows leaves the later rows of the target as they are", "", six) {
    const auto state = TestType{}.open(odd);
    const auto page = numbered(state);
    const std::size_t row_bytes = 5 * sizeof(typename TestType::state::number);
    for (std::uint32_t rows = 0; rows <= odd.tokens; ++rows) {
        kv::aligned_vector<std::byte> other(page.size(), std::byte{0x5a});
        state.copy(page, other, rows);
        std::size_t wrong = 0;
        for (std::uint32_t layer = 0; layer < odd.layers; ++layer)
            for (std::uint32_t head = 0; head < odd.kv_heads; ++head)
                for (std::uint32_t row = 0; row < odd.tokens; ++row) {
                    const kv::page_row at{kv::layer_id{layer}, kv::head_id{head}, row};
                    for (const auto* to : {state.key_row(other, at), state.value_row(other, at)}) {
                        const auto* const bytes = reinterpret_cast<const std::byte*>(to);
                        const auto begin = bytes - other.data();
                        for (std::size_t i = 0; i < row_bytes; ++i)
                            wrong +=
                                bytes[i] != (row < rows ? page[static_cast<std::size_t>(begin) + i] : std::byte{0x5a});
                    }
                }
        CHECK(wrong == 0);
    }
}
