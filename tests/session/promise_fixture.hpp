// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "session/small_model.hpp"
#include "support/folders.hpp"
#include <catch2/catch.hpp>

namespace promise {

namespace kv = kvcache;

using tokens = std::vector<kv::token_id>;
using cache = kv::cache<kv::codec::f32>;
using prefill_result = kv::prefill_result<cache>;

/// A random model with grouped queries: 2 layers, 6 query heads over 2 KV heads, the same weight bits in every build.
inline const kv::transformer& random_model() {
    return small::model();
}

/// The trained model of examples/models.
inline const kv::transformer& tiny_model() {
    static const kv::transformer model = [] {
        const std::filesystem::path models = test_folders::project() / "examples" / "models";
        auto loaded = kv::load_model(std::filesystem::directory_iterator(models)->path());
        REQUIRE(loaded.has_value());
        return std::move(loaded->model);
    }();
    return model;
}

/// Generates both models: the test case runs once for each.
inline const kv::transformer& each_model() {
    return GENERATE(false, true) ? tiny_model() : random_model();
}

/// Seeded tokens of a model's vocabulary.
inline tokens some_tokens(const kv::transformer& model, std::size_t n, unsigned seed) {
    std::mt19937 dice(seed);
    tokens made;
    for (std::size_t i = 0; i < n; ++i)
        made.push_back(kv::token_id{static_cast<std::int32_t>(dice() % model.vocabulary())});
    return made;
}

inline tokens joined(tokens a, const tokens& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

/// A model, a cache and threads, opened together.
struct host {
    explicit host(const kv::transformer& model, std::uint32_t page = 16, std::size_t threads = 1,
                  std::size_t split = 64, std::size_t pages = 4096)
        : pool(threads),
          store(kv::make_cache({model.shape(page), {.bytes = pages * bytes(model, page)}})),
          pipeline(store, model, pool, split) {}
    ~host() {
        const auto sound = store.check();
        CHECK((sound ? std::string() : sound.error().message) == "");
    }

    static std::size_t bytes(const kv::transformer& model, std::uint32_t page) {
        return kv::codec::f32{}.open(model.shape(page)).page_bytes();
    }

    [[nodiscard]] prefill_result prefill(const tokens& prompt, kv::logits_mode wanted = kv::logits_mode::all) {
        auto done = pipeline.prefill(prompt, wanted);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    [[nodiscard]] kv::matrix extend(cache::sequence& sequence, const tokens& more) {
        auto rows = pipeline.extend(sequence, more, kv::logits_mode::all);
        REQUIRE(rows.has_value());
        return std::move(*rows);
    }

    kv::thread_pool pool;
    cache store;
    kv::pipeline<cache, kv::transformer> pipeline;
};

/// Returns the logits of every position from a run that shares nothing. (tokens, vocabulary)
inline kv::matrix cold(const kv::transformer& model, const tokens& prompt) {
    host fresh(model);
    return fresh.prefill(prompt).logits;
}

/// Returns whether `rows` equal the last rows of `whole`, bit for bit.
inline bool same_bits(const kv::matrix& rows, const kv::matrix& whole) {
    if (rows.cols() != whole.cols() || rows.rows() > whole.rows() || rows.rows() == 0)
        return false;
    const float* tail = whole.data() + (whole.rows() - rows.rows()) * whole.cols();
    return std::memcmp(rows.data(), tail, static_cast<std::size_t>(rows.size()) * sizeof(float)) == 0;
}

inline kv::matrix first_rows(const kv::matrix& m, std::size_t n) {
    return m.topRows(static_cast<Eigen::Index>(n));
}

} // namespace promise
