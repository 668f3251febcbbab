// SPDX-License-Identifier: MIT
#include <kvcache/testing/emulated_device.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;

namespace {

struct fixture {
    testing::emulated_device device;
    cuda::stream_id first = *device.open_stream();
    cuda::stream_id second = *device.open_stream();
    cuda::event_id event = *device.open_event();
    std::byte* there = *device.allocate(256);
    std::byte* pinned = *device.allocate_pinned(256);

    void copy(cuda::stream_id stream, cuda::copy_way way) {
        const bool in = way == cuda::copy_way::to_device;
        const cuda::copy_piece piece{in ? pinned : there, in ? there : pinned, 256};
        REQUIRE(device.copy(stream, way, {&piece, 1}));
    }
    void set(int value) const { std::memset(pinned, value, 256); }
    [[nodiscard]] int held() const { return std::to_integer<int>(device.peek(there, 256)[100]); }
};

struct count_up {
    static constexpr unsigned threads = 3;
    int* to;
    [[nodiscard]] std::uint64_t blocks() const { return 4; }
    [[nodiscard]] std::size_t shared_bytes() const { return 0; }
    template <class Group>
    void operator()(Group& group) const {
        group.each([&](unsigned thread) { to[group.block() * threads + thread] += static_cast<int>(thread); });
    }
};

} // namespace

TEST_CASE("work is not done until a caller waits for it") {
    fixture f;
    f.set(1);
    f.copy(f.first, cuda::copy_way::to_device);
    CHECK(f.held() == 0xCD);
    CHECK_FALSE(f.device.idle());
    REQUIRE(f.device.synchronise(f.second));
    CHECK(f.held() == 0xCD);
    REQUIRE(f.device.synchronise(f.first));
    CHECK(f.held() == 1);
    CHECK(f.device.idle());
}

TEST_CASE("a source that changes before the stream has passed shows as wrong data") {
    fixture f;
    f.set(1);
    f.copy(f.first, cuda::copy_way::to_device);
    f.set(2);
    REQUIRE(f.device.synchronise(f.first));
    CHECK(f.held() == 2);
}

TEST_CASE("a stream that waits for an event runs the other as far as the event") {
    fixture f;
    f.set(7);
    f.copy(f.first, cuda::copy_way::to_device);
    REQUIRE(f.device.record(f.event, f.first));
    REQUIRE(f.device.fill(f.first, f.there, std::byte{9}, 256)); // after the event
    REQUIRE(f.device.wait(f.second, f.event));
    f.copy(f.second, cuda::copy_way::to_host);
    f.set(7);
    REQUIRE(f.device.synchronise(f.second));
    CHECK(std::to_integer<int>(f.pinned[0]) == 7);
    CHECK(f.held() == 7);
    REQUIRE(f.device.synchronise(f.first));
    CHECK(f.held() == 9);
}

TEST_CASE("an event that was never recorded has passed, and a query lets a stream progress") {
    fixture f;
    CHECK(*f.device.done(f.event));
    REQUIRE(f.device.synchronise(f.event));
    f.set(3);
    f.copy(f.first, cuda::copy_way::to_device);
    REQUIRE(f.device.record(f.event, f.first));
    int asked = 0;
    while (!*f.device.done(f.event))
        ++asked;
    CHECK(asked == 2);
    CHECK(f.held() == 3);
}

TEST_CASE("out of memory is a typed error, and all memory is freed at the end") {
    testing::emulated_device device({.bytes = 1000, .pinned_bytes = 100});
    const auto one = device.allocate(600);
    REQUIRE(one);
    const auto two = device.allocate(500);
    REQUIRE_FALSE(two);
    CHECK(two.error().code == kv::error_code::out_of_memory);
    CHECK(device.counts().bytes == 600);
    CHECK(device.allocate_pinned(101).error().code == kv::error_code::out_of_memory);
    device.deallocate(*one);
    device.deallocate(nullptr);
    CHECK(device.counts().bytes == 0);
    REQUIRE(device.allocate(1000));
}

TEST_CASE("the call that is to fail fails and puts nothing into a stream") {
    fixture f;
    f.set(1);
    f.device.fail_next(1);
    const cuda::copy_piece piece{f.pinned, f.there, 256};
    const auto refused = f.device.copy(f.first, cuda::copy_way::to_device, {&piece, 1});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::io);
    REQUIRE(f.device.synchronise(f.first));
    CHECK(f.held() == 0xCD);
    f.copy(f.first, cuda::copy_way::to_device);
    REQUIRE(f.device.synchronise(f.first));
    CHECK(f.held() == 1);
    CHECK(f.device.counts().batches == 1);
    CHECK(f.device.counts().to_device == 256);
}

TEST_CASE("what is no memory of the device is a caller's mistake") {
    fixture f;
    const cuda::copy_piece beyond{f.pinned, f.there + 1, 256};
    CHECK_THROWS_AS((void)f.device.copy(f.first, cuda::copy_way::to_device, {&beyond, 1}), kv::contract_violation);
    CHECK_THROWS_AS((void)f.device.fill(f.first, f.pinned, std::byte{}, 1), kv::contract_violation);
}

TEST_CASE("a kernel runs in the order of its stream") {
    fixture f;
    auto* const numbers = reinterpret_cast<int*>(f.there);
    REQUIRE(f.device.fill(f.first, f.there, std::byte{}, 256));
    REQUIRE(f.device.launch(f.first, count_up{numbers}));
    REQUIRE(f.device.launch(f.first, count_up{numbers}));
    REQUIRE(f.device.synchronise(f.first));
    for (int i = 0; i < 12; ++i)
        CHECK(numbers[i] == i % 3 * 2);
    CHECK(f.device.counts().launches == 2);
}

TEST_CASE("threads of a phase run in orders that differ, each once") {
    testing::emulated_block group(0, 32, 0, 1);
    std::vector<unsigned> first, second;
    group.each([&](unsigned thread) { first.push_back(thread); });
    group.each([&](unsigned thread) { second.push_back(thread); });
    CHECK(first != second);
    std::sort(first.begin(), first.end());
    std::sort(second.begin(), second.end());
    CHECK(first == second);
    CHECK(first.back() == 31);
    CHECK(first.size() == 32);
}

TEST_CASE("shared memory begins as NaNs and is no larger than requested") {
    testing::emulated_block group(3, 4, 100, 1);
    CHECK(group.block() == 3);
    CHECK(std::isnan(group.shared<float>(96, 1)[0]));
    CHECK_THROWS_AS(group.shared<float>(96, 2), kv::contract_violation);
    CHECK_THROWS_AS(group.shared<float>(2, 1), kv::contract_violation);
}

TEST_CASE("registers stay between phases") {
    testing::emulated_block group(0, 8, 0, 5);
    auto own = group.own<int>();
    group.alone([&](unsigned thread) { own[thread] = static_cast<int>(thread) * 10; });
    group.each([&](unsigned thread) { CHECK(own[thread] == static_cast<int>(thread) * 10); });
}

TEST_CASE("asynchronous copies arrive batch by batch, when they are waited for") {
    alignas(16) int from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    testing::emulated_block group(0, 1, 48, 1);
    int* const to = group.shared<int>(0, 12);
    group.alone([&](unsigned) { group.copy_async(to, from, true); });
    group.commit();
    group.alone([&](unsigned) {
        group.copy_async(to + 4, from + 4, true);
        group.copy_async(to + 8, from, false);
    });
    group.commit();
    CHECK(to[0] == -1);
    group.arrive<1>();
    CHECK(to[3] == 4);
    CHECK(to[4] == -1);
    group.arrive<0>();
    CHECK(to[7] == 8);
    CHECK(to[8] == 0);
}
