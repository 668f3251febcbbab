// SPDX-License-Identifier: MIT
// Pages on a device: the reference model keeps its cache there and computes attention there; its GEMMs run on the
// host. Compiled as it is, the device is emulated on the host; nvcc compiles it for a GPU:
//
//     nvcc -std=c++20 -O2 -arch=native --expt-relaxed-constexpr -Xcompiler -march=native -Iinclude
//          -isystem /usr/include/eigen3 -x cu examples/07_device.cpp
//
// Engines with their own cache and attention need less: docs/cuda.md.
// test:
#if defined(__CUDACC__)
#pragma nv_diag_suppress 20011, 20012, 20014 // host functions that no kernel calls
#endif

#include <kvcache/cache/compose.hpp>
#include <kvcache/cuda/device_model.hpp>
#include <kvcache/cuda/device_rows.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/testing/random_weights.hpp>

#if defined(__CUDACC__)
#include <kvcache/cuda/cuda_device.cuh>
#else
#include <kvcache/testing/emulated_device.hpp>
#endif

#include <cstring>
#include <iostream>
#include <vector>

#include "support/guarded.hpp"

namespace {

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;
using namespace kv::literals;

template <class Device>
int run(Device& device) {
    const kv::transformer model = kv::make_random_model({.hidden_size = 128,
                                                         .intermediate_size = 256,
                                                         .layers = 2,
                                                         .heads = 8,
                                                         .kv_heads = 2,
                                                         .head_dim = 16,
                                                         .vocabulary = 200,
                                                         .max_positions = 1024,
                                                         .rope = {},
                                                         .bos = {},
                                                         .eos = {}},
                                                        1);
    constexpr auto format = cuda::row_format::bf16;
    const cuda::device_model<Device, format, 16, 4> there(model, device);
    auto cache = kv::make_cache({.shape = there.shape(16), .limit = {.bytes = 4_MiB}, .id = there.id({})},
                                cuda::device_rows{.format = format}, cuda::device_storage<Device>{.device = &device});
    kv::thread_pool threads(1);
    kv::pipeline pipeline(cache, there, threads);

    std::vector<kv::token_id> prompt;
    for (std::int32_t i = 0; i < 100; ++i)
        prompt.push_back(kv::token_id{i * 37 % 200});
    const auto miss = pipeline.prefill(prompt);
    const auto hit = pipeline.prefill(prompt);
    if (!miss || !hit) {
        std::cerr << (miss ? hit.error() : miss.error()).message << '\n';
        return 1;
    }
    const bool same = std::memcmp(miss->logits.data(), hit->logits.data(),
                                  static_cast<std::size_t>(hit->logits.size()) * sizeof(float)) == 0;
    std::cout << device.name() << ": " << miss->prefilled << " tokens ran, then " << hit->prefilled << " and "
              << hit->reused << " were known; the logits are " << (same ? "the same bits" : "NOT the same") << '\n'
              << kv::describe(cache) << "; backend " << cache.id().backend << '\n';
    return same ? 0 : 1;
}

int program() {
#if defined(__CUDACC__)
    auto device = cuda::cuda_device::open();
    if (!device) {
        std::cerr << "no CUDA device: " << device.error().message << '\n';
        return 77;
    }
    return run(*device);
#else
    testing::emulated_device device;
    return run(device);
#endif
}

} // namespace

int main() {
    return support::guarded("07_device", [&] { return program(); });
}
