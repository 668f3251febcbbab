// SPDX-License-Identifier: MIT
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/hadamard.hpp>
#include <kvcache/testing/emulated_device.hpp>

#include <span>

#include "row_cases.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;
using cuda::row_format;

namespace {

template <row_format Format>
void check(kv::page_shape shape, cuda::kv_layout order, row_format outside, std::uint32_t tokens) {
    std::vector<std::byte> first;
    for (const std::uint64_t seed : {1u, 2u}) {
        testing::emulated_device device({.seed = seed});
        const auto out = cuda_cases::rows_come_back<Format>(device, {shape, order, Format}, outside, tokens, 3);
        CHECK(out.wrong == std::vector<std::string>{});
        if (seed == 1)
            first = out.bits;
        CHECK(out.bits == first);
    }
}

constexpr auto nhd = cuda::kv_layout::nhd, hnd = cuda::kv_layout::hnd;

} // namespace

TEST_CASE("rows are appended and gathered as they are") {
    check<row_format::bf16>({.layers = 2, .kv_heads = 3, .head_dim = 64, .tokens = 16}, nhd, row_format::bf16, 50);
    check<row_format::f16>({.layers = 1, .kv_heads = 2, .head_dim = 128, .tokens = 32}, hnd, row_format::f16, 33);
    check<row_format::f32>({.layers = 1, .kv_heads = 1, .head_dim = 80, .tokens = 16}, nhd, row_format::f32, 1);
}

TEST_CASE("rows are encoded on their way into pages and decoded on their way out") {
    check<row_format::int8>({.layers = 2, .kv_heads = 3, .head_dim = 128, .tokens = 16}, nhd, row_format::f32, 40);
    check<row_format::int8>({.layers = 1, .kv_heads = 1, .head_dim = 80, .tokens = 16}, hnd, row_format::bf16, 30);
    check<row_format::int4_hadamard>({.layers = 1, .kv_heads = 2, .head_dim = 128, .tokens = 16}, hnd, row_format::f32,
                                     20);
    check<row_format::int4_hadamard>({.layers = 2, .kv_heads = 2, .head_dim = 96, .tokens = 16}, nhd, row_format::f16,
                                     20);
    check<row_format::bf16>({.layers = 1, .kv_heads = 2, .head_dim = 64, .tokens = 16}, nhd, row_format::f32, 20);
    check<row_format::f16>({.layers = 1, .kv_heads = 2, .head_dim = 64, .tokens = 16}, nhd, row_format::f32, 20);
}

TEST_CASE("codes and scales are those of the host's codecs, bit for bit") {
    constexpr std::uint32_t dim = 96, tokens = 16;
    cuda_cases::noise random(4);
    std::vector<float> rows(tokens * dim), other(tokens * dim, 0.0f);
    for (float& x : rows)
        x = random() * (random.below(20) == 0 ? 30.0f : 1.0f);
    const auto encode = [&]<row_format Format>(std::integral_constant<row_format, Format>) {
        const cuda::page_layout layout{{.head_dim = dim, .tokens = tokens}, nhd, Format};
        std::vector<cuda::vector16> memory(layout.page_bytes() / 16);
        cuda::device_page_pool pool;
        pool.slabs[0] = reinterpret_cast<std::byte*>(memory.data());
        std::vector<cuda::row_slot> slots;
        for (std::uint32_t row = 0; row < tokens; ++row)
            slots.push_back({0, row});
        std::vector<cuda::vector16> keys(rows.size() / 4), values(rows.size() / 4);
        std::memcpy(keys.data(), rows.data(), rows.size() * 4);
        testing::run_emulated(cuda::quantize_rows<cuda::row_way::into_pages, Format>::make(
                                  layout, pool, 0, tokens, slots.data(),
                                  {reinterpret_cast<std::byte*>(keys.data()),
                                   reinterpret_cast<std::byte*>(values.data()), row_format::f32}),
                              1);
        std::vector<std::byte> page(layout.page_bytes());
        std::memcpy(page.data(), memory.data(), page.size());
        return page;
    };
    const auto scale_of = [](const std::vector<std::byte>& page, std::size_t at) {
        kv::half scale;
        std::memcpy(&scale, page.data() + at, 2);
        return scale;
    };
    const auto int8 = encode(std::integral_constant<row_format, row_format::int8>{});
    const auto int4 = encode(std::integral_constant<row_format, row_format::int4_hadamard>{});
    for (std::size_t row = 0; row < tokens; ++row) {
        std::vector<float> x(rows.begin() + static_cast<std::ptrdiff_t>(row * dim),
                             rows.begin() + static_cast<std::ptrdiff_t>((row + 1) * dim));
        float most = 0.0f;
        for (const float number : x)
            most = std::max(most, std::abs(number));
        const kv::half scale = kv::to_half(most / 127.0f);
        CHECK(scale_of(int8, tokens * dim + 2 * row) == scale);
        for (std::size_t d = 0; d < dim; ++d)
            CHECK(std::to_integer<std::int8_t>(int8[row * dim + d]) ==
                  static_cast<int>(std::nearbyint(x[d] * (1.0f / kv::widen(scale)))));

        kv::hadamard(std::span(x));
        for (std::size_t group = 0; group < dim / 32; ++group) {
            float up = 0.0f, down = 0.0f;
            for (std::size_t d = group * 32; d < group * 32 + 32; ++d) {
                up = std::max(up, x[d]);
                down = std::min(down, x[d]);
            }
            const kv::half step = kv::to_half((up > -down ? up : down) / -8.0f);
            CHECK(scale_of(int4, tokens * dim / 2 + (row * 3 + group) * 2) == step);
            for (std::size_t d = group * 32; d < group * 32 + 32; ++d) {
                const float code = std::clamp(std::nearbyint(x[d] * (1.0f / kv::widen(step))), -8.0f, 7.0f) + 8.0f;
                CHECK((std::to_integer<int>(int4[row * dim / 2 + d / 2]) >> (d % 2 * 4) & 15) ==
                      static_cast<int>(code));
            }
        }
    }
}

TEST_CASE("formats of 16 bits round as the host's do, every pattern") {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const auto pattern = static_cast<std::uint16_t>(bits);
        const auto same = [](float a, float b) {
            return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
        };
        if (!same(cuda::from_f16(pattern), kv::widen(kv::half{pattern})) ||
            !same(cuda::from_bf16(pattern), kv::widen(kv::bfloat16{pattern})))
            FAIL("pattern " << bits << " is read as another number");
        for (const std::uint32_t low : {0u, 1u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
            const auto number = std::bit_cast<float>(bits << 16 | low);
            if (cuda::to_f16(number) != kv::to_half(number).bits ||
                cuda::to_bf16(number) != kv::to_bfloat16(number).bits)
                FAIL("pattern " << bits << " is rounded otherwise");
        }
    }
}

TEST_CASE("powers of two are near, zero below their range, and nothing else is") {
    CHECK(cuda::power_of_two(0.0f) == 1.0f);
    CHECK(cuda::power_of_two(-1.0f) == 0.5f);
    CHECK(cuda::power_of_two(-126.0f) == 0x1p-126f);
    CHECK(cuda::power_of_two(-127.0f) == 0.0f);
    CHECK(cuda::power_of_two(-INFINITY) == 0.0f);
    CHECK(std::isnan(cuda::power_of_two(NAN)));
    double worst = 0;
    for (int i = 0; i < 100000; ++i) {
        const float x = -static_cast<float>(i) * 0.00125f;
        worst = std::max(worst,
                         std::abs(static_cast<double>(cuda::power_of_two(x)) / std::exp2(static_cast<double>(x)) - 1));
    }
    CHECK(worst < 0x1p-22);
}

TEST_CASE("a NaN stays in its row") {
    testing::emulated_device device;
    const cuda::page_layout layout{{.head_dim = 64, .tokens = 16}, nhd, row_format::int8};
    const auto stream = *device.open_stream();
    auto storage = cuda::device_storage<testing::emulated_device>{.device = &device}.open(1, layout.page_bytes());
    REQUIRE(storage.acquire(kv::page_id{0}));
    std::vector<float> rows(2 * 64, 1.0f);
    rows[70] = NAN;
    cuda_cases::device_copy<float, testing::emulated_device> keys(device, rows), values(device, rows);
    cuda_cases::device_copy<cuda::row_slot, testing::emulated_device> slots(device, {{0, 0}, {0, 1}});
    const cuda::token_rows given{keys.bytes(), values.bytes(), row_format::f32};
    using in = cuda::quantize_rows<cuda::row_way::into_pages, row_format::int8>;
    using back = cuda::quantize_rows<cuda::row_way::out_of_pages, row_format::int8>;
    REQUIRE(device.launch(stream, in::make(layout, storage.pool(), 0, 2, slots.data(), given)));
    REQUIRE(device.launch(stream, back::make(layout, storage.pool(), 0, 2, slots.data(), given)));
    cuda_cases::outcome out;
    const auto now = keys.fetch(stream, out);
    CHECK(std::abs(now[0] - 1.0f) < 1e-3f);
    CHECK(std::isnan(now[64]));
    CHECK(std::isnan(now[70]));
}
