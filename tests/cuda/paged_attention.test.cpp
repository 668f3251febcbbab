// SPDX-License-Identifier: MIT
#include <kvcache/testing/emulated_device.hpp>

#include "attention_cases.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;
using cuda::row_format;

namespace {

template <row_format Format, unsigned Dim, unsigned Queries>
void check(const cuda_cases::attention_case& of) {
    std::vector<std::byte> first;
    for (const std::uint64_t seed : {1u, 2u}) { // orders of threads and blocks
        testing::emulated_device device({.seed = seed});
        const auto out = cuda_cases::attention_is_right<Format, Dim, Queries>(device, of);
        INFO("order " << seed);
        CHECK(out.wrong == std::vector<std::string>{});
        if (seed == 1)
            first = out.bits;
        CHECK(out.bits == first);
        CHECK(device.counts().bytes == 0);
    }
}

} // namespace

TEST_CASE("attention on a device is near its oracle and its bits are the sequence's own") {
    check<row_format::bf16, 128, 4>({.rows = {70, 1, 0, 600}});
    check<row_format::bf16, 64, 1>({.kv_heads = 3,
                                    .group = 1,
                                    .order = cuda::kv_layout::hnd,
                                    .page_tokens = 48,
                                    .rows = {513, 64, 130},
                                    .slabs = 3});
    check<row_format::f16, 64, 2>(
        {.kv_heads = 1, .group = 3, .rows = {1, 128, 90}, .query_format = row_format::bf16, .seed = 5});
    check<row_format::f32, 64, 8>(
        {.kv_heads = 1, .group = 7, .page_tokens = 32, .rows = {512, 65}, .query_format = row_format::f16, .seed = 6});
}

TEST_CASE("queries are rotated by their distance from the base of the page they read") {
    check<row_format::bf16, 64, 4>({.rows = {200, 40}, .turned = true, .seed = 7});
    check<row_format::f32, 64, 2>({.group = 2,
                                   .order = cuda::kv_layout::hnd,
                                   .rows = {150, 700, 33},
                                   .turned = true,
                                   .ragged = true,
                                   .slabs = 4,
                                   .seed = 8});
}

TEST_CASE("int8 pages are attended in integers") {
    check<row_format::int8, 128, 4>({.rows = {70, 530}, .seed = 9});
    check<row_format::int8, 64, 2>({.kv_heads = 3,
                                    .group = 5,
                                    .order = cuda::kv_layout::hnd,
                                    .rows = {17, 80},
                                    .turned = true,
                                    .ragged = true,
                                    .query_format = row_format::bf16,
                                    .seed = 10});
}

TEST_CASE("a NaN stays in its own sequence and head") {
    cuda_cases::attention_case of{.rows = {40, 50}};
    for (const bool key : {true, false}) {
        testing::emulated_device device;
        cuda_cases::outcome out;
        auto batch = cuda_cases::make_batch<row_format::bf16>(of, 64);
        const auto clean = cuda_cases::attend_on<row_format::bf16, 64, 4>(device, out, batch, of, {0, 1}, 0);
        const auto page = index_of(batch.tables[1][1].page);
        const auto at = batch.layout.side(0, key ? cuda::row_side::keys : cuda::row_side::values) +
                        batch.layout.codes(batch.layout.row(3, 1));
        const std::uint16_t none = 0x7FC0;
        std::memcpy(batch.pages[page].data() + at, &none, 2);
        const auto given = cuda_cases::attend_on<row_format::bf16, 64, 4>(device, out, batch, of, {0, 1}, 0);
        CHECK(out.wrong == std::vector<std::string>{});
        for (std::size_t i = 0; i < given.size(); ++i) {
            const bool touched = i / (8 * 64) == 1 && i / 64 % 8 >= 4 && (key || i % 64 == 0);
            if (touched)
                CHECK(std::isnan(given[i]));
            else
                CHECK(given[i] == clean[i]);
        }
    }
}

TEST_CASE("a plan that cannot be is refused, and nothing is attended") {
    testing::emulated_device device;
    const auto stream = *device.open_stream();
    const cuda::page_layout layout{{.kv_heads = 2, .head_dim = 64, .tokens = 16}};
    cuda::paged_attention<testing::emulated_device, row_format::bf16, 64, 1> attention(
        device, {.layout = layout, .heads = 2, .scale = 1.0f, .steps = {}});
    const kv::page_entry entries[] = {{.page = kv::page_id{0}, .base = 0, .count = 16},
                                      {.page = kv::page_id{1}, .base = 7, .count = 16}};
    cuda::attention_table table;
    REQUIRE(table.add(entries, 31));
    CHECK(attention.plan(stream, table).error().code == kv::error_code::unsupported);

    CHECK(table.add(entries, std::int64_t{1} << 40).error().code == kv::error_code::out_of_range);
    CHECK(table.rows.size() == 1);

    const std::vector<double> frequencies(32, 1.0);
    cuda_cases::device_copy<cuda::turn, testing::emulated_device> turns(device,
                                                                        cuda::rope_table::make(frequencies, 20));
    cuda::paged_attention<testing::emulated_device, row_format::bf16, 64, 1> turning(
        device, {.layout = layout, .heads = 2, .scale = 1.0f, .steps = {turns.data(), 32, 1}});
    REQUIRE(turning.plan(stream, table));
    cuda::attention_table far;
    REQUIRE(far.add(entries, 256));
    CHECK(turning.plan(stream, far).error().code == kv::error_code::out_of_range);

    CHECK_THROWS_AS((cuda::paged_attention<testing::emulated_device, row_format::f16, 64, 1>(
                        device, {.layout = layout, .heads = 2, .scale = 1.0f, .steps = {}})),
                    kv::contract_violation);
}
