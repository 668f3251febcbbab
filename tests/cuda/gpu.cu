// SPDX-License-Identifier: MIT
// Runs the tests of the emulated device on a real one: the same oracles, and bits equal to the emulated device's. A
// separate program, so that a machine with only nvcc can build it. `--quick` skips the larger cases, for tools that
// slow it down. Exits with 77 without a device.
// Kernels are also instantiated with the host's group, whose members are host-only and never called on a device.
#pragma nv_diag_suppress 20011, 20014

#include <kvcache/cuda/cuda_device.cuh>
#include <kvcache/cuda/device_memory.hpp>
#include <kvcache/cuda/tiered.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/testing/emulated_device.hpp>

#include <cstdio>
#include <cstring>

#include "attention_cases.hpp"
#include "row_cases.hpp"

namespace {

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;
using cuda::row_format;

struct report {
    int failed = 0;
    int ran = 0;

    void tell(const char* name, const std::vector<std::string>& wrong) {
        ++ran;
        failed += wrong.empty() ? 0 : 1;
        std::printf("%s  %s\n", wrong.empty() ? "ok  " : "FAIL", name);
        for (const std::string& each : wrong)
            std::printf("      %s\n", each.c_str());
        std::fflush(stdout);
    }
};

// Runs a case on both devices.
template <class Case>
void both(report& to, const char* name, cuda::cuda_device& device, const Case& run) {
    cuda_cases::outcome here = run(device);
    testing::emulated_device emulated;
    const cuda_cases::outcome there = run(emulated);
    for (const std::string& each : there.wrong)
        here.expect(false, "emulated: " + each);
    std::size_t at = 0;
    while (at < here.bits.size() && at < there.bits.size() && here.bits[at] == there.bits[at])
        ++at;
    here.expect(here.bits == there.bits, "other bits than emulated, from byte " + std::to_string(at) + " of " +
                                             std::to_string(there.bits.size()));
    to.tell(name, here.wrong);
}

template <row_format Format, unsigned Dim, unsigned Queries>
void attention(report& to, const char* name, cuda::cuda_device& device, const cuda_cases::attention_case& of) {
    both(to, name, device, [&](auto& on) { return cuda_cases::attention_is_right<Format, Dim, Queries>(on, of); });
}

template <row_format Format>
void rows(report& to, const char* name, cuda::cuda_device& device, kv::page_shape shape, cuda::kv_layout order,
          row_format outside, std::uint32_t tokens) {
    both(to, name, device, [&](auto& on) {
        return cuda_cases::rows_come_back<Format>(on, {shape, order, Format}, outside, tokens, 3);
    });
}

// Copies pages to the device, between pages there, and back, with copy engines, kernels and both.
[[nodiscard]] std::vector<std::string> copies(cuda::cuda_device& device) {
    cuda_cases::outcome out;
    const cuda::stream_id stream = *device.open_stream();
    constexpr std::uint32_t pages = 300;
    constexpr std::size_t page_bytes = 5008;
    std::byte* const pinned = *device.allocate_pinned(2 * pages * page_bytes);
    std::byte* const back = pinned + pages * page_bytes;
    for (std::size_t i = 0; i < pages * page_bytes; ++i)
        pinned[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    auto storage =
        cuda::device_storage<cuda::cuda_device>{.device = &device, .slab_bytes = 70 * 5120, .ring_bytes = 65536}.open(
            pages, page_bytes);
    std::vector<cuda::page_part> in, from, ordinary_in, ordinary_out;
    std::vector<cuda::page_move> moves;
    std::vector<std::byte> ordinary(pinned, pinned + pages * page_bytes), fetched(ordinary.size());
    for (std::uint32_t page = 0; page < pages; ++page) {
        out.expect(storage.acquire(kv::page_id{page}), "a page is acquired");
        const std::size_t at = page * page_bytes;
        in.push_back({kv::page_id{page}, 0, {pinned + at, page_bytes}});
        from.push_back({kv::page_id{page}, 0, {back + at, page_bytes}});
        ordinary_in.push_back({kv::page_id{page}, 0, {ordinary.data() + at, page_bytes}});
        ordinary_out.push_back({kv::page_id{page}, 0, {fetched.data() + at, page_bytes}});
        if (page % 2 == 1)
            moves.push_back({kv::page_id{page - 1}, kv::page_id{page}});
    }
    cuda_cases::done(out, storage.load(stream, in));
    cuda_cases::done(out, storage.store(stream, from));
    cuda_cases::done(out, device.synchronise(stream));
    out.expect(std::memcmp(pinned, back, pages * page_bytes) == 0, "pinned pages come back");
    cuda_cases::done(out, storage.move(stream, moves, page_bytes));
    cuda_cases::done(out, storage.store(stream, from));
    cuda_cases::done(out, device.synchronise(stream));
    for (std::uint32_t page = 0; page < pages; ++page)
        out.expect(std::memcmp(pinned + page / 2 * 2 * page_bytes, back + page * page_bytes, page_bytes) == 0,
                   "pages move");
    cuda_cases::done(out, storage.send(stream, ordinary_in));
    cuda_cases::done(out, storage.bring(stream, ordinary_out));
    out.expect(ordinary == fetched, "ordinary memory comes back");
    // Unaligned and unpinned: the copy engines copy what the kernel cannot.
    const cuda::copy_piece odd{ordinary.data() + 1, storage.address(kv::page_id{3}) + 7, 99};
    const cuda::copy_piece home{storage.address(kv::page_id{3}) + 7, back + 3, 99};
    cuda_cases::done(out, device.copy(stream, cuda::copy_way::to_device, {&odd, 1}));
    cuda_cases::done(out, device.copy(stream, cuda::copy_way::to_host, {&home, 1}));
    cuda_cases::done(out, device.synchronise(stream));
    out.expect(std::memcmp(back + 3, ordinary.data() + 1, 99) == 0, "odd addresses are copied");
    device.deallocate_pinned(pinned);
    device.close(stream);
    return out.wrong;
}

// Host pages with a device in front: pages arrive layer by layer during computation, are evicted when others need
// room, and keep the last values written on the device.
[[nodiscard]] std::vector<std::string> tiers(cuda::cuda_device& device) {
    cuda_cases::outcome out;
    constexpr std::uint32_t pages = 9, layers = 4;
    constexpr std::size_t page_bytes = layers * 65536;
    const cuda::stream_id compute = *device.open_stream();
    std::byte* const seen = *device.allocate_pinned(page_bytes);
    cuda::pinned_resource<cuda::cuda_device> pinned(device);
    {
        auto state =
            cuda::tiered<cuda::cuda_device, kv::storage::heap, kv::eviction::lru>{
                .device = &device, .host = {.resource = &pinned}, .eviction = {}, .device_pages = 4, .layers = layers}
                .open(pages, page_bytes);
        std::vector<int> value(pages, 0);
        for (std::uint32_t page = 0; page < pages; ++page) {
            out.expect(state.acquire(kv::page_id{page}), "a page is acquired");
            const auto bytes = state.bytes(kv::page_id{page});
            cuda_cases::done(out, bytes);
            if (bytes)
                std::memset(bytes->data(), value[page] = static_cast<int>(page) + 1, page_bytes);
        }
        for (std::uint32_t step = 0; step < 60; ++step) {
            const kv::page_id both[] = {kv::page_id{step * 5 % pages}, kv::page_id{(step * 5 + 3) % pages}};
            cuda_cases::done(out, state.fetch(both));
            if (!out.wrong.empty())
                break;
            for (const kv::page_id page : both) {
                std::byte* const at = state.storage().address(state.place(page));
                for (std::uint32_t layer = 0; layer < layers; ++layer) {
                    cuda_cases::done(out, state.await(compute, layer));
                    const cuda::copy_piece piece{at + layer * 65536, seen + layer * 65536, 65536};
                    cuda_cases::done(out, device.copy(compute, cuda::copy_way::to_host, {&piece, 1}));
                }
                cuda_cases::done(out, device.synchronise(compute));
                out.expect(std::all_of(seen, seen + page_bytes,
                                       [&](std::byte b) { return b == static_cast<std::byte>(value[index_of(page)]); }),
                           "a page holds what was last written");
                value[index_of(page)] = static_cast<int>(step * 7 + index_of(page)) % 251;
                cuda_cases::done(out,
                                 device.fill(compute, at, static_cast<std::byte>(value[index_of(page)]), page_bytes));
            }
            cuda_cases::done(out, state.let_go(compute, both, true));
        }
        cuda_cases::done(out, state.write_back());
        for (std::uint32_t page = 0; page < pages; ++page) {
            const auto bytes = state.bytes(kv::page_id{page});
            cuda_cases::done(out, bytes);
            out.expect(bytes && (*bytes)[page_bytes - 1] == static_cast<std::byte>(value[page]), "and brings it home");
        }
    }
    device.deallocate_pinned(seen);
    device.close(compute);
    return out.wrong;
}

// More than any device has: a typed error, and the next call succeeds.
[[nodiscard]] std::vector<std::string> memory_runs_out(cuda::cuda_device& device) {
    cuda_cases::outcome out;
    auto storage = cuda::device_storage<cuda::cuda_device>{.device = &device, .slab_bytes = std::size_t{1} << 30}.open(
        64, std::size_t{1} << 42);
    out.expect(!storage.acquire(kv::page_id{0}), "four terabytes are refused");
    out.expect(!storage.status() && storage.status().error().code == kv::error_code::out_of_memory, "as out of memory");
    const auto after = device.allocate(1024);
    out.expect(after.has_value(), "and the next call goes well");
    if (after)
        device.deallocate(*after);
    return out.wrong;
}

} // namespace

int main(int count, char** words) {
    const bool quick = count > 1 && std::strcmp(words[1], "--quick") == 0;
    auto opened = cuda::cuda_device::open();
    if (!opened) {
        std::printf("SKIPPED: no CUDA device to test on (%s)\n", opened.error().message.c_str());
        return 77;
    }
    std::printf("device: %s\n", opened->name().c_str());
    report to;
    auto engines = cuda::cuda_device::open({.engine_bytes = 0});
    to.tell("pages by kernels", copies(*opened));
    to.tell("pages by copy engines", copies(*engines));
    to.tell("host pages with the device in front", tiers(*opened));
    if (!quick) // tools that check runtime calls report the error as a fault
        to.tell("memory runs out", memory_runs_out(*opened));

    constexpr auto nhd = cuda::kv_layout::nhd, hnd = cuda::kv_layout::hnd;
    rows<row_format::bf16>(to, "bf16 rows", *opened, {.layers = 2, .kv_heads = 3, .head_dim = 64, .tokens = 16}, nhd,
                           row_format::bf16, 50);
    rows<row_format::int8>(to, "int8 rows", *opened, {.layers = 2, .kv_heads = 3, .head_dim = 128, .tokens = 16}, nhd,
                           row_format::bf16, 40);
    rows<row_format::int8>(to, "int8 rows of 80", *opened, {.kv_heads = 1, .head_dim = 80, .tokens = 16}, hnd,
                           row_format::f32, 30);
    rows<row_format::int4_hadamard>(to, "int4 rows", *opened, {.kv_heads = 2, .head_dim = 128, .tokens = 16}, hnd,
                                    row_format::f32, 20);
    rows<row_format::int4_hadamard>(to, "int4 rows of 96", *opened,
                                    {.layers = 2, .kv_heads = 2, .head_dim = 96, .tokens = 16}, nhd, row_format::f16,
                                    20);
    rows<row_format::f16>(to, "f16 rows from f32", *opened, {.kv_heads = 2, .head_dim = 64, .tokens = 16}, nhd,
                          row_format::f32, 20);

    attention<row_format::bf16, 128, 4>(to, "bf16 attention", *opened, {.rows = {70, 1, 0, 600}});
    attention<row_format::bf16, 128, 4>(
        to, "bf16 attention, turned, several bases", *opened,
        {.order = hnd, .rows = {150, 700, 33}, .turned = true, .ragged = true, .slabs = 4, .seed = 8});
    attention<row_format::int8, 128, 4>(to, "int8 attention", *opened, {.rows = {70, 530}, .turned = true, .seed = 9});
    attention<row_format::f16, 64, 2>(
        to, "f16 attention, groups of three", *opened,
        {.kv_heads = 1, .group = 3, .rows = {1, 128, 90}, .query_format = row_format::bf16, .seed = 5});
    attention<row_format::f32, 64, 8>(
        to, "f32 attention, groups of seven", *opened,
        {.kv_heads = 1, .group = 7, .page_tokens = 32, .rows = {512, 65}, .query_format = row_format::f16, .seed = 6});
    if (!quick)
        attention<row_format::bf16, 128, 4>(to, "bf16 attention, long", *opened,
                                            {.kv_heads = 8, .rows = {3000, 17, 1025, 512, 511, 513}, .seed = 11});
    std::printf("%d of %d cases failed\n", to.failed, to.ran);
    return to.failed == 0 ? 0 : 1;
}
