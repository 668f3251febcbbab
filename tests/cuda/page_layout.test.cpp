// SPDX-License-Identifier: MIT
#include <kvcache/cuda/page_layout.hpp>

#include <cstddef>
#include <cstdint>
#include <set>

#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace cuda = kv::cuda;

TEST_CASE("every row and every scale of a page has its own place in it") {
    using cuda::row_format;
    for (const auto order : {cuda::kv_layout::nhd, cuda::kv_layout::hnd})
        for (const auto format :
             {row_format::f32, row_format::f16, row_format::bf16, row_format::int8, row_format::int4_hadamard}) {
            const cuda::page_layout layout{{.layers = 2, .kv_heads = 3, .head_dim = 96, .tokens = 16}, order, format};
            REQUIRE(layout.valid());
            std::set<std::uint64_t> taken;
            std::uint64_t wanted = 0;
            for (std::uint32_t layer = 0; layer < 2; ++layer)
                for (const auto side : {cuda::row_side::keys, cuda::row_side::values})
                    for (std::uint32_t token = 0; token < 16; ++token)
                        for (std::uint32_t head = 0; head < 3; ++head) {
                            const auto at = layout.side(layer, side);
                            const auto row = layout.row(token, head);
                            for (std::uint64_t i = 0; i < layout.row_bytes(); ++i, ++wanted)
                                taken.insert(at + layout.codes(row) + i);
                            for (std::uint64_t i = 0; i < 2 * layout.row_scales(); ++i, ++wanted)
                                taken.insert(at + layout.scales(row) + i);
                        }
            CHECK(taken.size() == wanted);
            CHECK(*taken.rbegin() < layout.page_bytes());
            CHECK(layout.page_bytes() - wanted < 4 * 16);
        }
}

TEST_CASE("neighbours in NHD are heads, in HND tokens") {
    cuda::page_layout layout{{.layers = 1, .kv_heads = 8, .head_dim = 128, .tokens = 16}};
    CHECK(layout.row(0, 1) == 1);
    CHECK(layout.row(1, 0) == 8);
    CHECK(layout.page_bytes() == 65536);
    layout.order = cuda::kv_layout::hnd;
    CHECK(layout.row(0, 1) == 16);
    CHECK(layout.row(1, 0) == 1);
}

TEST_CASE("rows that are no whole vectors are not valid") {
    cuda::page_layout layout{{.head_dim = 12}, cuda::kv_layout::nhd, cuda::row_format::bf16};
    CHECK_FALSE(layout.valid());
    layout.shape.head_dim = 80;
    CHECK(layout.valid());
    layout.format = cuda::row_format::int4_hadamard;
    CHECK_FALSE(layout.valid());
    CHECK_FALSE(cuda::page_layout{{.tokens = 15}}.valid());
}

TEST_CASE("offsets inside a page pass four gigabytes") {
    const cuda::page_layout layout{{.layers = 80, .kv_heads = 128, .head_dim = 256, .tokens = 1024}};
    CHECK(layout.side(79, cuda::row_side::values) == 159 * (std::uint64_t{1024} * 128 * 512));
    CHECK(layout.codes(std::uint64_t{1} << 24) == std::uint64_t{512} << 24);
}

TEST_CASE("addresses in a slab pass four gigabytes") {
    std::byte first{};
    cuda::device_page_pool pool;
    pool.page_stride = 3u << 20;
    pool.slab_pages = 1u << 16;
    pool.slabs[0] = &first;
    const auto at = reinterpret_cast<std::uintptr_t>(pool.page(5000));
    CHECK(at - reinterpret_cast<std::uintptr_t>(&first) == std::uintptr_t{5000} * (3u << 20));
}
