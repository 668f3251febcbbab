// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

/// Counts outstanding blocks, and allocates at most `most` blocks, none larger than `largest` bytes.
class counted_resource : public kvcache::pmr::memory_resource {
public:
    explicit counted_resource(int most, std::size_t largest = ~std::size_t{}) : most_(most), largest_(largest) {}
    int out = 0;
    std::size_t bytes_out = 0;

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (out == most_ || bytes > largest_)
            throw std::bad_alloc();
        ++out;
        bytes_out += bytes;
        return kvcache::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        --out;
        bytes_out -= bytes;
        kvcache::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

    int most_;
    std::size_t largest_;
};

constexpr std::size_t mebibyte = std::size_t{1} << 20;

} // namespace

TEST_CASE("the heap takes a page when it is first used and keeps it until it closes") {
    counted_resource resource(100);
    {
        auto state = kv::storage::heap{.resource = &resource}.open(5, 128);
        CHECK(resource.out == 0);
        CHECK(state.acquire(kv::page_id{3}));
        CHECK(resource.out == 1);
        CHECK(kvcache::ranges::all_of(state.bytes(kv::page_id{3}), [](std::byte b) { return b == std::byte{}; }));
        state.release(kv::page_id{3});
        CHECK(state.acquire(kv::page_id{3}));
        CHECK(resource.out == 1);

        auto moved = std::move(state);
        CHECK(moved.acquire(kv::page_id{4}));
        auto other = kv::storage::heap{.resource = &resource}.open(5, 128);
        CHECK(other.acquire(kv::page_id{0}));
        other = std::move(moved);
        CHECK(other.bytes(kv::page_id{3}).size() == 128);
    }
    CHECK(resource.out == 0);
}

TEST_CASE("a resource without memory is a refused page") {
    counted_resource resource(1);
    auto state = kv::storage::heap{.resource = &resource}.open(2, 64);
    CHECK(state.acquire(kv::page_id{0}));
    CHECK_FALSE(state.acquire(kv::page_id{1}));
    CHECK(state.acquire(kv::page_id{0}));
}

TEST_CASE("a large budget is taken in slabs of neighbours, as far as it is filled") {
    counted_resource resource(100);
    {
        // 320 pages of 300 KB, not a multiple of a line: slabs of at most 32 MiB, and of an eighth of the capacity.
        constexpr std::size_t page_bytes = 300'001;
        auto state = kv::storage::heap{.resource = &resource}.open(320, page_bytes);
        CHECK(resource.out == 0);
        REQUIRE(state.acquire(kv::page_id{0}));
        CHECK(resource.out == 1);
        const std::size_t slab = resource.bytes_out;
        CHECK(slab <= 320 * page_bytes / 8 + 64 * 40);
        CHECK(slab >= 4 * mebibyte);
        for (std::uint32_t page = 1; page < 40; ++page)
            REQUIRE(state.acquire(kv::page_id{page}));
        CHECK(resource.out == 1);
        REQUIRE(state.acquire(kv::page_id{319}));
        CHECK(resource.out == 2);
        for (std::uint32_t page = 0; page < 40; ++page)
            kvcache::ranges::fill(state.bytes(kv::page_id{page}), static_cast<std::byte>(page + 1));
        auto moved = std::move(state);
        for (std::uint32_t page = 0; page < 40; ++page)
            CHECK(kvcache::ranges::all_of(moved.bytes(kv::page_id{page}),
                                          [&](std::byte b) { return b == static_cast<std::byte>(page + 1); }));
        CHECK(kvcache::ranges::all_of(moved.bytes(kv::page_id{319}), [](std::byte b) { return b == std::byte{}; }));
    }
    CHECK(resource.out == 0);
    CHECK(resource.bytes_out == 0);
}

TEST_CASE("every page of a budget that no slab divides is to be had") {
    for (const std::size_t pages : {16u, 17u, 23u, 65u}) {
        counted_resource resource(1000);
        {
            auto state = kv::storage::heap{.resource = &resource}.open(pages, 3 * mebibyte);
            for (std::uint32_t page = 0; page < pages; ++page)
                REQUIRE(state.acquire(kv::page_id{page}));
            for (std::uint32_t page = 0; page < pages; ++page)
                state.bytes(kv::page_id{page}).back() = std::byte{1};
            CHECK(resource.bytes_out == pages * 3 * mebibyte);
        }
        CHECK(resource.bytes_out == 0);
    }
}

TEST_CASE("where no slab is to be had pages are taken one by one") {
    counted_resource resource(3, mebibyte);
    {
        auto state = kv::storage::heap{.resource = &resource}.open(200, mebibyte);
        for (std::uint32_t page = 0; page < 3; ++page)
            CHECK(state.acquire(kv::page_id{page}));
        CHECK_FALSE(state.acquire(kv::page_id{3}));
        CHECK_FALSE(state.acquire(kv::page_id{100}));
        CHECK(state.acquire(kv::page_id{2}));
        CHECK(resource.bytes_out == 3 * mebibyte);
    }
    CHECK(resource.out == 0);
}

TEST_CASE("what a resource gives as zero is not touched, and what the system gives is zero again and again") {
    class : public kvcache::pmr::memory_resource {
        void* do_allocate(std::size_t bytes, std::size_t alignment) override {
            void* const at = kvcache::pmr::new_delete_resource()->allocate(bytes, alignment);
            kvcache::ranges::fill(std::span(static_cast<std::byte*>(at), bytes), std::byte{7});
            return at;
        }
        void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
            kvcache::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
        }
        [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
    } sevens;
    const auto all_are = [](auto& state, std::uint32_t page, int n) {
        return kvcache::ranges::all_of(state.bytes(kv::page_id{page}), [n](std::byte b) { return b == std::byte(n); });
    };
    for (const std::size_t page_bytes : {std::size_t{200}, mebibyte}) {
        auto touched = kv::storage::heap{.resource = &sevens}.open(40, page_bytes);
        auto left = kv::storage::heap{.resource = &sevens, .zeroed = true}.open(40, page_bytes);
        REQUIRE((touched.acquire(kv::page_id{1}) && left.acquire(kv::page_id{1})));
        CHECK(all_are(touched, 1, 0));
        CHECK(all_are(left, 1, 7));
        for (int round = 0; round < 3; ++round) {
            auto own = kv::storage::heap{}.open(40, page_bytes);
            for (std::uint32_t page = 0; page < 40; ++page) {
                REQUIRE(own.acquire(kv::page_id{page}));
                CHECK(all_are(own, page, 0));
                kvcache::ranges::fill(own.bytes(kv::page_id{page}), std::byte{9});
            }
        }
    }
}
