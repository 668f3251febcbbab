// SPDX-License-Identifier: MIT
#include <kvcache/cuda/device_memory.hpp>
#include <kvcache/cuda/tiered.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/s3_fifo.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/testing/emulated_device.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;

namespace {

constexpr std::size_t page_bytes = 96;

// A device, its pinned memory, and a compute stream that fills and reads pages.
struct fixture {
    testing::emulated_device device;
    cuda::pinned_resource<testing::emulated_device> pinned{device};
    cuda::stream_id compute = *device.open_stream();
    std::byte* seen = *device.allocate_pinned(page_bytes);

    template <class Eviction>
    auto open(std::size_t pages, std::size_t device_pages, Eviction eviction) {
        return cuda::tiered<testing::emulated_device, kv::storage::heap, Eviction>{.device = &device,
                                                                                   .host = {.resource = &pinned},
                                                                                   .eviction = eviction,
                                                                                   .device_pages = device_pages,
                                                                                   .layers = 3}
            .open(pages, page_bytes);
    }
    template <class State>
    void fill(State& state, kv::page_id page, int value) {
        REQUIRE(device.fill(compute, state.storage().address(state.place(page)), static_cast<std::byte>(value),
                            page_bytes));
    }
    // Content of an awaited layer, read in the compute stream.
    template <class State>
    bool holds(State& state, kv::page_id page, int value) {
        for (std::uint32_t layer = 0; layer < 3; ++layer) {
            REQUIRE(state.await(compute, layer));
            const cuda::copy_piece piece{state.storage().address(state.place(page)) + layer * 32, seen + layer * 32,
                                         32};
            REQUIRE(device.copy(compute, cuda::copy_way::to_host, {&piece, 1}));
        }
        REQUIRE(device.synchronise(compute));
        return std::all_of(seen, seen + page_bytes, [&](std::byte b) { return b == static_cast<std::byte>(value); });
    }
};

/// Names a victim that it may not.
struct wrong {
    using role = kv::eviction_role;
    kv::slot_id named = {};
    struct state {
        kv::slot_id named;
        void admit(kv::slot_id, const kv::eviction_entry&) {}
        void touch(kv::slot_id) {}
        void erase(kv::slot_id) {}
        [[nodiscard]] std::optional<kv::slot_id> victim(const auto&) { return named; }
    };
    [[nodiscard]] state open(kv::eviction_capacity) const { return {named}; }
};

} // namespace

TEST_CASE("pages leave the device and come back as they were, layer by layer") {
    fixture f;
    auto state = f.open(8, 2, kv::eviction::lru{});
    for (std::uint32_t page = 0; page < 8; ++page) {
        REQUIRE(state.acquire(kv::page_id{page}));
        const kv::page_id one[] = {kv::page_id{page}};
        REQUIRE(state.fetch(one));
        REQUIRE(state.await(f.compute, 2));
        f.fill(state, one[0], static_cast<int>(page) + 1);
        REQUIRE(state.let_go(f.compute, one, true));
    }
    CHECK(f.device.counts().bytes == 2 * 256);
    CHECK(state.on_device(kv::page_id{7}));
    CHECK_FALSE(state.on_device(kv::page_id{0}));
    for (std::uint32_t page = 0; page < 8; ++page) {
        const kv::page_id one[] = {kv::page_id{page}};
        REQUIRE(state.fetch(one));
        CHECK(f.holds(state, one[0], static_cast<int>(page) + 1));
        REQUIRE(state.let_go(f.compute, one, false));
    }
    const auto bytes = state.bytes(kv::page_id{3});
    REQUIRE(bytes);
    CHECK(std::to_integer<int>((*bytes)[0]) == 4);
}

TEST_CASE("a page that was not changed leaves without a copy, and one written back too") {
    fixture f;
    auto state = f.open(4, 1, kv::eviction::lru{});
    for (std::uint32_t page = 0; page < 4; ++page)
        REQUIRE(state.acquire(kv::page_id{page}));
    for (std::uint32_t page = 0; page < 4; ++page) {
        const kv::page_id one[] = {kv::page_id{page}};
        REQUIRE(state.fetch(one));
        REQUIRE(state.let_go(f.compute, one, page == 2));
        if (page == 2) {
            CHECK(state.bytes(one[0]).error().code == kv::error_code::unsupported);
            REQUIRE(state.write_back());
            REQUIRE(state.bytes(one[0]));
            CHECK(f.device.counts().to_host == page_bytes);
        }
    }
    REQUIRE(state.bytes(kv::page_id{0}));
    CHECK(f.device.counts().to_host == page_bytes);
}

TEST_CASE("pinned pages stay, and what does not fit next to them is refused and changes nothing") {
    fixture f;
    auto state = f.open(6, 3, kv::eviction::lru{});
    for (std::uint32_t page = 0; page < 6; ++page)
        REQUIRE(state.acquire(kv::page_id{page}));
    const kv::page_id held[] = {kv::page_id{0}, kv::page_id{1}}, more[] = {kv::page_id{2}, kv::page_id{3}},
                      one[] = {kv::page_id{3}, kv::page_id{0}};
    REQUIRE(state.fetch(held));
    const auto refused = state.fetch(more);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::out_of_memory);
    CHECK_FALSE(state.on_device(kv::page_id{2}));
    CHECK(state.on_device(kv::page_id{0}));
    REQUIRE(state.fetch(one));
    REQUIRE(state.let_go(f.compute, held, false));
    REQUIRE_FALSE(state.fetch(std::vector<kv::page_id>{kv::page_id{2}, kv::page_id{4}}));
    REQUIRE(state.let_go(f.compute, one, false));
    REQUIRE(state.fetch(std::vector<kv::page_id>{kv::page_id{2}, kv::page_id{4}, kv::page_id{5}}));
    CHECK_FALSE(state.on_device(kv::page_id{3}));
}

TEST_CASE("copies overlap with computation: the first layer arrives before the last") {
    fixture f;
    auto state = f.open(2, 2, kv::eviction::lru{});
    const kv::page_id both[] = {kv::page_id{0}, kv::page_id{1}};
    for (const kv::page_id page : both) {
        REQUIRE(state.acquire(page));
        std::ranges::fill(*state.bytes(page), std::byte{5});
    }
    REQUIRE(state.fetch(both));
    REQUIRE(state.await(f.compute, 0));
    REQUIRE(f.device.synchronise(f.compute));
    const std::byte* const at = state.storage().address(state.place(both[1]));
    CHECK(std::to_integer<int>(f.device.peek(at, 96)[31]) == 5);
    CHECK(std::to_integer<int>(f.device.peek(at, 96)[32]) == 0xCD);
    CHECK(f.device.counts().batches == 3);
}

TEMPLATE_TEST_CASE("whatever happens, a page holds what was last written", "", kv::eviction::lru,
                   kv::eviction::s3_fifo) {
    for (unsigned seed = 1; seed <= 6; ++seed) {
        std::mt19937 random(seed);
        fixture f;
        {
            auto state = f.open(12, 4, TestType{});
            std::vector<int> value(12, -1); // -1: not acquired
            for (int step = 0; step < 300; ++step) {
                if (seed > 3 && step % 5 == 0)
                    f.device.fail_next(1 + random() % 12);
                std::vector<kv::page_id> pages;
                for (std::uint32_t page = 0; page < 12 && pages.size() < 3; ++page)
                    if (random() % 4 == 0)
                        pages.push_back(kv::page_id{page});
                if (random() % 10 == 0) {
                    for (const kv::page_id page : pages)
                        if (value[index_of(page)] >= 0) {
                            state.release(page);
                            value[index_of(page)] = -1;
                        }
                    continue;
                }
                bool ready = true;
                std::vector<kv::page_id> fresh;
                for (const kv::page_id page : pages)
                    if (value[index_of(page)] < 0) {
                        ready = state.acquire(page);
                        if (!ready)
                            break;
                        fresh.push_back(page);
                        value[index_of(page)] = 256; // undefined
                    }
                if (!ready || !state.fetch(pages))
                    continue;
                f.device.fail_next(0);
                for (const kv::page_id page : pages)
                    if (value[index_of(page)] < 256)
                        CHECK(f.holds(state, page, value[index_of(page)]));
                const bool write = random() % 2 == 0;
                for (const kv::page_id page : pages)
                    if (write) {
                        REQUIRE(state.await(f.compute, 2));
                        value[index_of(page)] = static_cast<int>(random() % 256);
                        f.fill(state, page, value[index_of(page)]);
                    }
                REQUIRE(state.let_go(f.compute, pages, write));
                if (random() % 8 == 0)
                    REQUIRE(state.write_back());
            }
        }
        CHECK(f.device.counts().bytes == 0);
        CHECK(f.device.counts().pinned == page_bytes);
    }
}

TEST_CASE("a victim that is held, not on the device or no page is a contract violation") {
    for (const std::uint32_t named : {0u, 2u, 3u, 1u << 30}) {
        INFO(named);
        fixture one;
        auto state = one.open(3, 2, wrong{.named = kv::slot_id{named}});
        for (std::uint32_t page = 0; page < 3; ++page)
            REQUIRE(state.acquire(kv::page_id{page}));
        const kv::page_id held[] = {kv::page_id{0}, kv::page_id{1}}, next[] = {kv::page_id{2}};
        REQUIRE(state.fetch(held));
        CHECK_THROWS_AS(state.fetch(next), kv::contract_violation);
    }
}
