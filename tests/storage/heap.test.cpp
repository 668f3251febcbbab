// SPDX-License-Identifier: MIT
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <memory_resource>
#include <new>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

/// Counts what is out, and lends no more than `most` blocks.
class counted_resource : public std::pmr::memory_resource {
public:
    explicit counted_resource(int most) : most_(most) {}
    int out = 0;

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (out == most_)
            throw std::bad_alloc();
        ++out;
        return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        --out;
        std::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

    int most_;
};

} // namespace

TEST_CASE("the heap takes a page when it is first used and keeps it until it closes") {
    counted_resource resource(100);
    {
        auto state = kv::heap{.resource = &resource}.open(5, 128);
        CHECK(resource.out == 0);
        CHECK(state.acquire(kv::page_id{3}));
        CHECK(resource.out == 1);
        CHECK(std::ranges::all_of(state.bytes(kv::page_id{3}), [](std::byte b) { return b == std::byte{}; }));
        state.release(kv::page_id{3});
        CHECK(state.acquire(kv::page_id{3}));
        CHECK(resource.out == 1);

        auto moved = std::move(state);
        CHECK(moved.acquire(kv::page_id{4}));
        auto other = kv::heap{.resource = &resource}.open(5, 128);
        CHECK(other.acquire(kv::page_id{0}));
        other = std::move(moved);
        CHECK(other.bytes(kv::page_id{3}).size() == 128);
    }
    CHECK(resource.out == 0);
}

TEST_CASE("a resource without memory is a refused page") {
    counted_resource resource(1);
    auto state = kv::heap{.resource = &resource}.open(2, 64);
    CHECK(state.acquire(kv::page_id{0}));
    CHECK_FALSE(state.acquire(kv::page_id{1}));
    CHECK(state.acquire(kv::page_id{0}));
}
