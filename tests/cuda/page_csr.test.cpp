// SPDX-License-Identifier: MIT
#include <kvcache/cuda/page_csr.hpp>
#include <kvcache/testing/emulated_device.hpp>

#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;

namespace {

kv::page_entry entry(std::uint32_t page, std::uint32_t count, std::int64_t base = 0, std::uint32_t first = 0) {
    return {.page = kv::page_id{page}, .base = base, .first = first, .count = count};
}

using table = std::vector<kv::page_entry>;

kv::result<cuda::page_csr> exported(const std::vector<table>& tables) {
    const std::vector<std::span<const kv::page_entry>> views(tables.begin(), tables.end());
    return cuda::export_csr(views, 16);
}

} // namespace

TEST_CASE("tables export as indptr, indices and last_page_len") {
    const auto csr = exported({{entry(4, 16), entry(2, 5)}, {}, {entry(9, 16)}});
    REQUIRE(csr);
    CHECK(csr->indptr == std::vector{0, 2, 2, 3});
    CHECK(csr->indices == std::vector{4, 2, 9});
    CHECK(csr->last_page_len == std::vector{5, 0, 16});
}

TEST_CASE("what the table format cannot represent is refused") {
    for (const auto& table : {table{entry(0, 16, 5)}, table{entry(0, 16, -1)}, table{entry(0, 8, 0, 8)},
                              table{entry(0, 15), entry(1, 1)}, table{entry(0, 0)}, table{entry(0, 17)}}) {
        const auto csr = exported({{entry(3, 2)}, table});
        REQUIRE_FALSE(csr);
        CHECK(csr.error().code == kv::error_code::unsupported);
        CHECK(csr.error().message.find("of sequence 1") != std::string::npos);
    }
    CHECK(exported({{entry(0x80000000u, 16)}}).error().code == kv::error_code::out_of_range);
}

TEST_CASE("the tables go to the device and come again") {
    testing::emulated_device device;
    const auto stream = *device.open_stream();
    cuda::device_csr on_device(device);
    for (const std::uint32_t pages : {1u, 300u, 7u}) {
        table each;
        for (std::uint32_t page = 0; page < pages; ++page)
            each.push_back(entry(page * 3, 16));
        const auto csr = exported({each});
        REQUIRE(on_device.assign(stream, *csr));
        REQUIRE(device.synchronise(stream));
        REQUIRE(on_device.indices.size() == pages);
        for (std::uint32_t page = 0; page < pages; ++page)
            CHECK(on_device.indices.data()[page] == static_cast<std::int32_t>(page * 3));
        CHECK(on_device.indptr.data()[1] == static_cast<std::int32_t>(pages));
    }
}

TEST_CASE("a layer exports as a tensor with strides that address every row") {
    for (const auto order : {cuda::kv_layout::nhd, cuda::kv_layout::hnd}) {
        const cuda::page_layout layout{{.layers = 3, .kv_heads = 4, .head_dim = 64, .tokens = 16}, order};
        cuda::device_page_pool pool;
        pool.page_stride = layout.page_bytes() + 256;
        pool.slab_pages = 10;
        std::vector<std::byte> memory(pool.page_stride * 10);
        pool.slabs[0] = memory.data();
        const auto tensor = cuda::export_tensor(layout, pool, 2);
        REQUIRE(tensor);
        for (const std::uint32_t page : {0u, 9u})
            for (std::uint32_t token = 0; token < 16; ++token)
                for (std::uint32_t head = 0; head < 4; ++head) {
                    const auto element =
                        page * tensor->page_stride + token * tensor->token_stride + head * tensor->head_stride;
                    const auto row = layout.codes(layout.row(token, head));
                    CHECK(tensor->keys + element * 2 == pool.page(page) + layout.side(2, cuda::row_side::keys) + row);
                    CHECK(tensor->values + element * 2 ==
                          pool.page(page) + layout.side(2, cuda::row_side::values) + row);
                }
        pool.slabs[1] = memory.data();
        CHECK_FALSE(cuda::export_tensor(layout, pool, 2));
    }
}
