// SPDX-License-Identifier: MIT
// The reference model with its pages and attention on a real device: bits equal to the emulated device's, and a hit
// equals a miss there too. A separate program that needs the library's dependencies in addition to nvcc. Exits with 77
// without a device.
// Kernels are also instantiated with the host's group, whose members are host-only and never called on a device; the
// same holds for functions of Eigen.
#pragma nv_diag_suppress 20011, 20012, 20014

#include <kvcache/cache/compose.hpp>
#include <kvcache/cuda/cuda_device.cuh>
#include <kvcache/cuda/device_model.hpp>
#include <kvcache/cuda/device_rows.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/testing/emulated_device.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace {

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;
using cuda::row_format;
using tokens = std::vector<kv::token_id>;

constexpr unsigned dim = 32;

const kv::transformer& model() {
    static const kv::transformer made = kv::make_random_model({.hidden_size = 96,
                                                               .intermediate_size = 128,
                                                               .layers = 2,
                                                               .heads = 6,
                                                               .kv_heads = 2,
                                                               .head_dim = dim,
                                                               .vocabulary = 67,
                                                               .max_positions = 2048,
                                                               .rope = {},
                                                               .tied_head = true,
                                                               .bos = {},
                                                               .eos = {}},
                                                              7);
    return made;
}

tokens some(std::size_t n, unsigned seed) {
    std::mt19937 dice(seed);
    tokens made;
    for (std::size_t i = 0; i < n; ++i)
        made.push_back(kv::token_id{static_cast<std::int32_t>(dice() % model().vocabulary())});
    return made;
}
tokens joined(tokens a, const tokens& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

// A cache whose pages are on a device, and the model that computes attention there.
template <class Device, row_format Format>
struct place {
    using storage = cuda::device_storage<Device>;
    using cache = kv::cache<cuda::device_rows, storage>;
    using model_type = cuda::device_model<Device, Format, dim, 4>;

    place(Device& device, std::uint32_t page, std::size_t split)
        : there(model(), device),
          pool(2),
          store(kv::make_cache({there.shape(page), {.bytes = 8u << 20}, there.id({1, 2})},
                               cuda::device_rows{.format = Format}, storage{.device = &device})),
          pipeline(store, there, pool, split) {}

    model_type there;
    kv::thread_pool pool;
    cache store;
    kv::pipeline<cache, model_type> pipeline;
};

struct report {
    int failed = 0;
    int ran = 0;
    void expect(bool holds, const char* what, const char* format) {
        ++ran;
        failed += holds ? 0 : 1;
        std::printf("%s  %s, %s\n", holds ? "ok  " : "FAIL", what, format);
        std::fflush(stdout);
    }
};

bool same_tail(const kv::result<kv::matrix>& rows, const kv::matrix& whole) {
    if (!rows || rows->cols() != whole.cols() || rows->rows() > whole.rows() || rows->rows() == 0)
        return false;
    return std::memcmp(rows->data(), whole.data() + (whole.rows() - rows->rows()) * whole.cols(),
                       static_cast<std::size_t>(rows->size()) * sizeof(float)) == 0;
}

template <class Device, row_format Format>
kv::matrix cold(Device& device, const tokens& prompt) {
    place<Device, Format> here(device, 16, 1000);
    auto done = here.pipeline.prefill(prompt, kv::logits_mode::all);
    if (!done) {
        std::printf("      %s: %s\n", done.error().field.c_str(), done.error().message.c_str());
        return {};
    }
    return std::move(done->logits);
}

template <row_format Format>
void check(report& to, const char* name, cuda::cuda_device& device, bool quick) {
    const tokens prompt = some(quick ? 40 : 560, 1), left = some(20, 2), right = some(20, 3);
    const tokens longer = joined(prompt, left);
    const kv::matrix want = cold<cuda::cuda_device, Format>(device, longer);
    testing::emulated_device emulated;
    to.expect(same_tail(cold<testing::emulated_device, Format>(emulated, longer), want), "the emulated device's bits",
              name);

    using here_type = place<cuda::cuda_device, Format>;
    here_type here(device, 32, 17);
    auto trunk = here.pipeline.prefill(prompt, kv::logits_mode::none);
    to.expect(trunk.has_value(), "a prompt runs", name);
    if (!trunk)
        return;
    auto warm = here.pipeline.prefill(longer, kv::logits_mode::all);
    to.expect(warm && warm->reused == prompt.size() && same_tail(std::move(warm->logits), want),
              "a hit equals a miss, in other pages and another split", name);
    auto branch = trunk->sequence.fork(prompt.size() - 5);
    tokens other(prompt.begin(), prompt.end() - 5);
    const kv::matrix of_other = cold<cuda::cuda_device, Format>(device, joined(other, right));
    const std::vector<kv::batch_entry<typename here_type::cache>> batch = {
        {&branch, right, kv::logits_mode::last}, {&trunk->sequence, left, kv::logits_mode::last}};
    kv::matrix both;
    const bool ran = here.pipeline.extend(batch, both).has_value();
    to.expect(ran && same_tail(kv::matrix(both.topRows(1)), of_other) &&
                  same_tail(kv::matrix(both.bottomRows(1)), want),
              "a fork and its trunk in one batch", name);
    to.expect(here.store.check().has_value(), "the invariants hold", name);
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
    check<row_format::bf16>(to, "bf16", *opened, quick);
    std::printf("%d of %d checks failed\n", to.failed, to.ran);
    return to.failed == 0 ? 0 : 1;
}
