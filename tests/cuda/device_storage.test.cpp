// SPDX-License-Identifier: MIT
#include <kvcache/cuda/device_storage.hpp>
#include <kvcache/testing/emulated_device.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;

namespace {

using storage = cuda::device_storage<testing::emulated_device>;

std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> out(bytes);
    std::ranges::generate(out, [&] { return static_cast<std::byte>(random()); });
    return out;
}

} // namespace

TEST_CASE("pages come in slabs when they are first used, and go when the storage closes") {
    testing::emulated_device device;
    {
        auto one = storage{.device = &device}.open(10, 1000);
        CHECK(device.counts().bytes == 0);
        REQUIRE(one.acquire(kv::page_id{7}));
        CHECK(device.counts().bytes == 10 * 1024);
        REQUIRE(one.acquire(kv::page_id{0}));
        CHECK(device.counts().bytes == 10 * 1024);
        CHECK(one.address(kv::page_id{7}) - one.address(kv::page_id{0}) == 7 * 1024);

        auto many = storage{.device = &device, .slab_bytes = 4096}.open(10, 1000);
        REQUIRE(many.acquire(kv::page_id{9}));
        CHECK(device.counts().bytes == 12 * 1024); // the last slab has two pages
        auto moved = std::move(many);
        REQUIRE(moved.acquire(kv::page_id{3}));
        CHECK(device.counts().bytes == 16 * 1024);
        many = std::move(moved);
        REQUIRE(many.acquire(kv::page_id{3}));
        CHECK(device.counts().bytes == 16 * 1024);
    }
    CHECK(device.counts().bytes == 0);
    CHECK(device.counts().pinned == 0);
}

TEST_CASE("there are never more slabs than a kernel can address") {
    testing::emulated_device device;
    auto state = storage{.device = &device, .slab_bytes = 1}.open(1000, 256);
    for (std::uint32_t page = 0; page < 1000; ++page)
        REQUIRE(state.acquire(kv::page_id{page}));
    CHECK(state.pool().slab_pages == 16);
    std::vector<std::byte*> at;
    for (std::uint32_t page = 0; page < 1000; ++page)
        at.push_back(state.address(kv::page_id{page}));
    std::ranges::sort(at);
    CHECK(std::ranges::adjacent_find(at, [](auto* a, auto* b) { return b - a < 256; }) == at.end());
}

TEST_CASE("without memory a page is refused, typed, and nothing changes") {
    testing::emulated_device device({.bytes = 5000});
    auto state = storage{.device = &device, .slab_bytes = 2048}.open(8, 1000);
    REQUIRE(state.acquire(kv::page_id{0}));
    REQUIRE(state.acquire(kv::page_id{2}));
    const auto before = device.counts().bytes;
    CHECK(state.status());
    CHECK_FALSE(state.acquire(kv::page_id{4}));
    CHECK(state.status().error().code == kv::error_code::out_of_memory);
    CHECK(device.counts().bytes == before);
    REQUIRE(state.acquire(kv::page_id{3}));

    device.fail_next(1);
    CHECK_FALSE(state.acquire(kv::page_id{6}));
    CHECK(state.status().error().code == kv::error_code::io);
}

TEST_CASE("what is sent comes back, whatever the ring and the parts") {
    for (const std::size_t ring : {1u, 4096u, 1u << 20}) {
        testing::emulated_device device;
        const auto stream = *device.open_stream();
        auto state = storage{.device = &device, .slab_bytes = 16384, .ring_bytes = ring}.open(20, 5000);
        for (std::uint32_t page = 0; page < 20; ++page)
            REQUIRE(state.acquire(kv::page_id{page}));
        std::vector<std::vector<std::byte>> sent(20);
        std::vector<cuda::page_part> parts;
        for (std::uint32_t page = 0; page < 20; ++page) {
            sent[page] = noise(page == 3 ? 0 : 5000 - 7 * page, page);
            parts.push_back({kv::page_id{page}, 7 * page, sent[page]});
        }
        const auto kept = sent;
        REQUIRE(state.send(stream, parts));
        for (auto& each : sent)
            std::ranges::fill(each, std::byte{}); // the source may change once send returns
        REQUIRE(state.bring(stream, parts));
        CHECK(sent == kept);
        CHECK(device.counts().to_device == device.counts().to_host);
    }
}

TEST_CASE("pinned memory goes to many pages and back in one call each") {
    testing::emulated_device device;
    const auto stream = *device.open_stream();
    auto state = storage{.device = &device}.open(6, 512);
    REQUIRE(state.acquire(kv::page_id{0}));
    std::byte* const pinned = *device.allocate_pinned(6 * 512);
    const auto content = noise(6 * 512, 1);
    std::ranges::copy(content, pinned);
    std::vector<cuda::page_part> parts;
    for (std::uint32_t page = 0; page < 6; ++page)
        parts.push_back({kv::page_id{5 - page}, 0, {pinned + page * 512, 512}});
    REQUIRE(state.load(stream, parts));
    REQUIRE(device.synchronise(stream));
    std::fill_n(pinned, 6 * 512, std::byte{});
    REQUIRE(state.store(stream, parts));
    CHECK(std::all_of(pinned, pinned + 6 * 512, [](std::byte b) { return b == std::byte{}; }));
    REQUIRE(device.synchronise(stream));
    CHECK(std::ranges::equal(content, std::span(pinned, 6 * 512)));
    CHECK(device.counts().batches == 2);
    CHECK(device.counts().pieces == 12);
    device.deallocate_pinned(pinned);
}

TEST_CASE("pages move on the device in the order of the stream, as many as requested") {
    testing::emulated_device device;
    const auto stream = *device.open_stream();
    auto state = storage{.device = &device}.open(4, 300);
    REQUIRE(state.acquire(kv::page_id{0}));
    auto a = noise(300, 1), b = noise(300, 2), out = noise(300, 3), other = out;
    const cuda::page_part sent[] = {{kv::page_id{0}, 0, a}, {kv::page_id{1}, 0, b}};
    REQUIRE(state.send(stream, sent));
    const cuda::page_move moves[] = {{kv::page_id{0}, kv::page_id{1}}};
    REQUIRE(state.move(stream, moves, 100));
    const cuda::page_move again[] = {{kv::page_id{1}, kv::page_id{3}}};
    REQUIRE(state.move(stream, again, 300));
    const cuda::page_part brought[] = {{kv::page_id{3}, 0, out}, {kv::page_id{0}, 0, other}};
    REQUIRE(state.bring(stream, brought));
    CHECK(std::equal(out.begin(), out.begin() + 100, a.begin()));
    CHECK(std::equal(out.begin() + 100, out.end(), b.begin() + 100));
    CHECK(other == a);
    CHECK(device.counts().within == 400);
}

TEST_CASE("a fault at any call is an error, and the next try goes well") {
    auto out = noise(3000, 9);
    for (std::uint64_t n = 1; n < 60; ++n) {
        testing::emulated_device device;
        const auto stream = *device.open_stream();
        auto state = storage{.device = &device, .ring_bytes = 4096}.open(3, 3000);
        REQUIRE(state.acquire(kv::page_id{0}));
        auto content = noise(3000, static_cast<unsigned>(n));
        const cuda::page_part sent[] = {{kv::page_id{2}, 0, content}};
        const cuda::page_part brought[] = {{kv::page_id{2}, 0, out}};
        device.fail_next(n);
        const auto first = state.send(stream, sent);
        const auto second = first ? state.bring(stream, brought) : first;
        if (second)
            CHECK(out == content);
        else
            CHECK(second.error().code == kv::error_code::io);
        device.fail_next(0);
        REQUIRE(state.send(stream, sent));
        REQUIRE(state.bring(stream, brought));
        CHECK(out == content);
    }
}

TEST_CASE("a page that was not acquired, and bytes outside one, are a caller's mistake") {
    testing::emulated_device device;
    const auto stream = *device.open_stream();
    auto state = storage{.device = &device, .slab_bytes = 512}.open(4, 512);
    REQUIRE(state.acquire(kv::page_id{0}));
    auto content = noise(512, 1);
    const cuda::page_part none[] = {{kv::page_id{1}, 0, content}}, outside[] = {{kv::page_id{0}, 1, content}};
    CHECK_THROWS_AS((void)state.load(stream, none), kv::contract_violation);
    CHECK_THROWS_AS((void)state.load(stream, outside), kv::contract_violation);
    CHECK_THROWS_AS((void)state.acquire(kv::page_id{4}), kv::contract_violation);
    CHECK_THROWS_AS((void)storage{}.open(1, 1), kv::contract_violation);
}

TEST_CASE("offsets are 64 bits wide") {
    std::vector<std::byte> memory(1);
    cuda::device_page_pool pool;
    pool.slabs[0] = memory.data();
    pool.page_stride = std::uint64_t{1} << 21;
    pool.slab_pages = 1u << 20;
    CHECK(pool.page(70'000) - pool.slabs[0] == std::ptrdiff_t{70'000} << 21);
}
