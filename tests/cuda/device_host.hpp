// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/compose.hpp>
#include <kvcache/cuda/device_model.hpp>
#include <kvcache/cuda/device_rows.hpp>
#include <kvcache/cuda/device_storage.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/testing/emulated_device.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace device_host {

namespace kv = kvcache;
namespace cuda = kv::cuda;
namespace testing = kv::testing;

using tokens = std::vector<kv::token_id>;

/// Storage format of rows on the device.
struct f32 {
    static constexpr cuda::row_format format = cuda::row_format::f32;
    static constexpr cuda::kv_layout order = cuda::kv_layout::nhd;
};
struct bf16 {
    static constexpr cuda::row_format format = cuda::row_format::bf16;
    static constexpr cuda::kv_layout order = cuda::kv_layout::nhd;
};
struct int8 {
    static constexpr cuda::row_format format = cuda::row_format::int8;
    static constexpr cuda::kv_layout order = cuda::kv_layout::hnd;
};

/// A random model with grouped queries, small enough for an emulated device.
inline const kv::transformer& small_model() {
    static const kv::transformer model = kv::make_random_model({.hidden_size = 48,
                                                                .intermediate_size = 64,
                                                                .layers = 2,
                                                                .heads = 6,
                                                                .kv_heads = 2,
                                                                .head_dim = 16,
                                                                .vocabulary = 67,
                                                                .max_positions = 2048,
                                                                .rope = {},
                                                                .tied_head = true,
                                                                .bos = {},
                                                                .eos = {}},
                                                               7);
    return model;
}

/// Seeded random tokens of its vocabulary.
inline tokens some_tokens(std::size_t n, unsigned seed) {
    std::mt19937 dice(seed);
    tokens made;
    for (std::size_t i = 0; i < n; ++i)
        made.push_back(kv::token_id{static_cast<std::int32_t>(dice() % small_model().vocabulary())});
    return made;
}
inline tokens first(const tokens& of, std::size_t n) {
    return {of.begin(), of.begin() + static_cast<std::ptrdiff_t>(n)};
}
inline tokens joined(tokens a, const tokens& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

struct settings {
    std::uint32_t page = 16;
    std::size_t threads = 1;
    std::size_t split = 64;
    std::size_t pages = 64;
    std::size_t device_bytes = std::size_t{1} << 30;
    std::uint64_t seed = 1; ///< Seed of the order of threads and blocks.
};

/// A cache whose pages are on an emulated device, and the model that computes attention there.
template <class Format>
struct on_device {
    using storage = cuda::device_storage<testing::emulated_device>;
    using cache = kv::cache<cuda::device_rows, storage>;
    using model = cuda::device_model<testing::emulated_device, Format::format, 16, 4>;
    using prefill_result = kv::prefill_result<cache>;

    explicit on_device(settings how = {})
        : device({.bytes = how.device_bytes, .seed = how.seed}),
          there(small_model(), device),
          pool(how.threads),
          store(kv::make_cache({there.shape(how.page),
                                {.bytes = how.pages * rows().open(there.shape(how.page)).page_bytes()},
                                there.id(kv::digest{1, 2})},
                               rows(), storage{.device = &device})),
          pipeline(store, there, pool, how.split) {}
    ~on_device() {
        const auto sound = store.check();
        CHECK((sound ? std::string() : sound.error().message) == "");
    }

    static cuda::device_rows rows() { return {.format = Format::format, .order = Format::order}; }

    [[nodiscard]] prefill_result prefill(const tokens& prompt) {
        auto done = pipeline.prefill(prompt, kv::logits_mode::all);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    [[nodiscard]] kv::matrix extend(typename cache::sequence& sequence, const tokens& more) {
        auto rows = pipeline.extend(sequence, more, kv::logits_mode::all);
        REQUIRE(rows.has_value());
        return std::move(*rows);
    }

    testing::emulated_device device;
    model there;
    kv::thread_pool pool;
    cache store;
    kv::pipeline<cache, model> pipeline;
};

/// Logits of every position, without reuse or batching. (tokens, vocabulary)
template <class Format>
kv::matrix cold(const tokens& prompt) {
    return on_device<Format>({.seed = 77}).prefill(prompt).logits;
}

/// Returns whether `rows` are, bit for bit, the last rows of `whole`.
inline bool same_bits(const kv::matrix& rows, const kv::matrix& whole) {
    if (rows.cols() != whole.cols() || rows.rows() > whole.rows() || rows.rows() == 0)
        return false;
    const float* tail = whole.data() + (whole.rows() - rows.rows()) * whole.cols();
    return std::memcmp(rows.data(), tail, static_cast<std::size_t>(rows.size()) * sizeof(float)) == 0;
}
inline kv::matrix first_rows(const kv::matrix& m, std::size_t n) {
    return m.topRows(static_cast<Eigen::Index>(n));
}

} // namespace device_host
