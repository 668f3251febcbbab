// SPDX-License-Identifier: MIT
#include <kvcache/storage/all.hpp>
#include <kvcache/testing/storage_conformance.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

/// One block for all pages, at a distance of `stride` bytes, `offset` bytes off a cache line.
struct packed {
    using role = kv::storage_role;
    bool overlap = false;
    std::size_t offset = 0;
    struct state {
        std::size_t page_bytes;
        std::size_t stride;
        std::size_t offset;
        kv::aligned_vector<std::byte> block;
        [[nodiscard]] bool acquire(kv::page_id) { return true; }
        void release(kv::page_id) noexcept {}
        [[nodiscard]] std::span<std::byte> bytes(kv::page_id page) const {
            return {const_cast<std::byte*>(block.data()) + offset + index_of(page) * stride, page_bytes};
        }
    };
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        const std::size_t stride = (page_bytes + 63) / 64 * 64 - (overlap && page_bytes > 64 ? 64 : 0);
        return {page_bytes, stride, offset, kv::aligned_vector<std::byte>(pages * stride + page_bytes + offset)};
    }
};

} // namespace

TEMPLATE_LIST_TEST_CASE("storage policies pass the conformance tests", "", kv::storage_policies) {
    CHECK(kv::testing::storage_conformance(TestType{}, 1) == kv::testing::violations{});
}

TEST_CASE("the conformance tests of storage find faults") {
    CHECK(kv::testing::storage_conformance(packed{}, 1).empty());
    CHECK_FALSE(kv::testing::storage_conformance(packed{.overlap = true}, 1).empty());
    CHECK_FALSE(kv::testing::storage_conformance(packed{.offset = 4}, 1).empty());
}
