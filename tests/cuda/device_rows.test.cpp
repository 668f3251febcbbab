// SPDX-License-Identifier: MIT
// Rows computed by a device are never reused for the host's, nor the reverse.
#include <kvcache/core/identity.hpp>
#include <kvcache/cuda/device_rows.hpp>
#include <kvcache/hash/xxh3.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/storage/concept.hpp>

#include "device_host.hpp"
#include <catch2/catch.hpp>

using namespace device_host;

namespace {

using host_cache = kv::cache<kv::codec::f32>;

host_cache opened(kv::identity id) {
    return kv::make_cache({small_model().shape(16), {.bytes = 1 << 20}, std::move(id)}, kv::codec::f32{});
}

// A snapshot of a prompt that ran on the host, for a model of this identity.
std::vector<std::byte> a_snapshot(const kv::identity& id) {
    auto cache = opened(id);
    kv::thread_pool threads(1);
    kv::pipeline pipeline(cache, small_model(), threads);
    const auto done = pipeline.prefill(some_tokens(40, 1));
    REQUIRE(done.has_value());
    std::vector<std::byte> bytes;
    REQUIRE(kv::write_snapshot(cache, done->sequence, {}, "", [&](auto pieces) -> kv::result<void> {
        for (const auto piece : pieces)
            bytes.insert(bytes.end(), piece.begin(), piece.end());
        return {};
    }));
    return bytes;
}

} // namespace

TEST_CASE("a device cache has another identity than the host's, whatever identity was given") {
    const kv::identity model = small_model().id({1, 2});
    CHECK(model.backend == "cpu");
    auto host = opened(model);
    CHECK(host.id().backend == "cpu");
    on_device<f32> there, again;
    CHECK(there.store.id().backend == "cuda " + std::to_string(cuda::device_revision)); // although created with "cpu"
    CHECK(there.store.id() == again.store.id());
    on_device<bf16> other;
    CHECK(there.store.id().codec != other.store.id().codec);

    // Apart from the page layout, the backend alone separates the two: in memory, in tiers and in files.
    kv::identity nearly = there.store.id();
    nearly.codec = host.id().codec;
    nearly.layout = host.id().layout;
    CHECK(kv::digest_of(host.id()) != kv::digest_of(nearly));
    CHECK(kv::hash::xxh3{}.open(host.id()).root() != kv::hash::xxh3{}.open(nearly).root());
    nearly.backend = "cpu";
    CHECK(nearly == host.id());
}

TEST_CASE("a snapshot of another backend is refused by that name, and nothing has changed") {
    const kv::identity cpu = small_model().id({1, 2});
    kv::identity device = cpu;
    device.backend = on_device<f32>().store.id().backend;
    for (const auto& [from, to] : {std::pair(cpu, device), std::pair(device, cpu)}) {
        const auto snapshot = a_snapshot(from);
        auto cache = opened(to);
        const auto refused = kv::read_snapshot(cache, snapshot);
        REQUIRE_FALSE(refused.has_value());
        CHECK(refused.error().code == kv::error_code::mismatched);
        CHECK(refused.error().field == "backend");
        CHECK(cache.stats().free == cache.stats().pages);
        CHECK(cache.check().has_value());
        auto own = opened(from);
        CHECK(kv::read_snapshot(own, snapshot).has_value());
    }
}

TEST_CASE("a device's pages are of the size and order that its kernels read") {
    const kv::page_shape shape{.layers = 3, .kv_heads = 2, .head_dim = 32, .tokens = 16};
    for (const auto format :
         {cuda::row_format::f32, cuda::row_format::f16, cuda::row_format::bf16, cuda::row_format::int8})
        for (const auto order : {cuda::kv_layout::nhd, cuda::kv_layout::hnd}) {
            const auto state = cuda::device_rows{.format = format, .order = order}.open(shape);
            CHECK(state.layout() == cuda::page_layout{shape, order, format});
            CHECK(state.page_bytes() == state.layout().page_bytes());
        }
    const cuda::device_rows rows{}, turned{.format = cuda::row_format::int4_hadamard},
        heads{.order = cuda::kv_layout::hnd};
    CHECK(rows.open(shape).name() == "device f32");
    CHECK(rows.open(shape).layout_name() == "nhd, codes and then scales; 3 layers, 2 KV heads of 32");
    CHECK(heads.open(shape).layout_name() == "hnd, codes and then scales; 3 layers, 2 KV heads of 32");
    CHECK_THROWS_AS(turned.open(shape), kv::contract_violation);
    CHECK_THROWS_AS(rows.open({.head_dim = 6, .tokens = 16}), kv::contract_violation);
    static_assert(kv::device_storage_state<on_device<f32>::cache::storage_type>);
    static_assert(!kv::host_storage_state<on_device<f32>::cache::storage_type>);
}
