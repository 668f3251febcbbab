// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/layer_groups.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/session/pipeline.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "promise_fixture.hpp"
#include "support/folders.hpp"
#include <catch2/catch.hpp>

namespace recurrent {

using namespace promise;

// Convolutions and full attention; Gated DeltaNet with gated attention; Mamba-2; and Gated DeltaNet with windows
// besides. The last one is not recurrent: windows and full attention with heads of other sizes, and layers that read
// the keys and values of others.
inline const kv::transformer& recurrent_model(std::size_t which) {
    static const std::vector<kv::transformer> all = [] {
        std::vector<kv::transformer> made;
        for (const char* name : {"lfm2", "qwen35", "granitehybrid"}) {
            auto loaded = kv::load_model(test_folders::project() / "tests" / "data" / "checkpoints" / name);
            REQUIRE((loaded ? std::string() : loaded.error().message) == "");
            made.push_back(std::move(loaded->model));
        }
        kv::model_config config = small::config_of(5);
        config.architecture = "qwen35";
        config.gated_attention = true;
        config.mixer = kv::layer_mixer::gated_delta;
        config.recurrence = {.taps = 4, .key_heads = 2, .value_heads = 4, .key_dim = 12, .value_dim = 72};
        config.each_layer.resize(5);
        config.each_layer[0].recurrent = config.each_layer[2].recurrent = config.each_layer[3].recurrent = true;
        config.each_layer[1].window = 21;
        REQUIRE(config.check());
        made.push_back(kv::make_random_model(config, 5));
        auto shared = kv::load_model(test_folders::project() / "tests" / "data" / "checkpoints" / "gemma4");
        REQUIRE(shared);
        made.push_back(std::move(shared->model));
        return made;
    }();
    return all[which];
}
inline constexpr std::size_t recurrent_models = 4, models = 5;

template <class... Policies>
auto cache_of(const kv::transformer& model, std::uint32_t page, std::size_t bytes, Policies... policies) {
    return kv::make_cache({.limit = {.bytes = bytes}, .id = model.id({1, 2})},
                          kv::layers::grouped{.layout = model.layout(page)}, std::move(policies)...);
}

inline tokens part(const tokens& all, std::size_t first, std::size_t end) {
    return {all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(end)};
}

template <class Cache>
void check(const Cache& cache) {
    const auto sound = cache.check();
    CHECK((sound ? std::string() : sound.error().message) == "");
}

// A pipeline over a cache, whose errors fail the test.
template <class Cache>
struct runner {
    runner(Cache& of, const kv::transformer& model, std::size_t split = 64, std::size_t threads = 1,
           kv::snapshot_places places = {})
        : pool(threads), cache(of), pipeline(of, model, pool, split, places) {}
    ~runner() { check(cache); }

    auto prefill(const tokens& prompt) {
        auto made = pipeline.prefill(prompt, kv::logits_mode::all);
        REQUIRE((made ? std::string() : made.error().message) == "");
        return std::move(*made);
    }
    kv::matrix extend(typename Cache::sequence& sequence, const tokens& more) {
        auto made = pipeline.extend(sequence, more, kv::logits_mode::all);
        REQUIRE((made ? std::string() : made.error().message) == "");
        return std::move(*made);
    }

    kv::thread_pool pool;
    Cache& cache;
    kv::pipeline<Cache, kv::transformer> pipeline;
};

// Without a prefix, at once, on one thread.
inline kv::matrix alone(const kv::transformer& model, const tokens& prompt) {
    auto cache = cache_of(model, 16, 32u << 20);
    return runner(cache, model, 1024).prefill(prompt).logits;
}

} // namespace recurrent
