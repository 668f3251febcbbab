// SPDX-License-Identifier: MIT
#include <kvcache/session/generate.hpp>

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

const auto go_on = [](kv::token_id, std::span<const float>) { return true; };

} // namespace

TEST_CASE("an answer has the same tokens whatever was reused, and ends at its stop criteria") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 40, 1);
    for (const float temperature : {0.0f, 0.8f}) {
        const kv::sampler sampling{.temperature = temperature, .seed = 9};
        host here(model);
        const auto first = kv::generate(here.pipeline, prompt, sampling, {.max_tokens = 20}, go_on);
        const auto again = kv::generate(here.pipeline, prompt, sampling, {.max_tokens = 20}, go_on);
        REQUIRE(first.has_value());
        REQUIRE(again.has_value());
        CHECK(first->ids.size() == 20);
        CHECK(first->ids == again->ids);
        CHECK(again->prompt.reused == 39);
        // The last token was drawn and never run.
        CHECK(first->prompt.sequence.size() == prompt.size() + 19);

        const auto stopped =
            kv::generate(here.pipeline, prompt, sampling, {.max_tokens = 20, .stop_tokens = {first->ids[7]}}, go_on);
        REQUIRE(stopped.has_value());
        CHECK(stopped->stopped);
        CHECK(stopped->ids.size() <= 8);
        std::size_t heard = 0;
        const auto cut = kv::generate(here.pipeline, prompt, sampling, {.max_tokens = 20},
                                      [&](kv::token_id, std::span<const float>) { return ++heard < 3; });
        REQUIRE(cut.has_value());
        CHECK(cut->ids.size() == 3);
        CHECK_FALSE(cut->stopped);
    }
}

TEST_CASE("an answer may have no tokens, and unwanted logits are computed all the same") {
    const auto& model = random_model();
    host here(model);
    const auto nothing = kv::generate(here.pipeline, some_tokens(model, 5, 2), kv::sampler{}, {.max_tokens = 0}, go_on);
    REQUIRE(nothing.has_value());
    CHECK(nothing->ids.empty());
    const auto said = kv::generate(here.pipeline, some_tokens(model, 5, 2), kv::sampler{}, {.max_tokens = 2}, go_on,
                                   kv::logits_mode::none);
    REQUIRE(said.has_value());
    CHECK(said->ids.size() == 2);
}

namespace {

// A model with damaged weights.
struct broken_model {
    const kv::transformer& sound;

    template <class Lease>
    struct pass {
        kv::forward_pass<Lease> inner;
        void begin(std::span<const kv::batch_slice<Lease>> batch) { inner.begin(batch); }
        void forward(kv::layer_id layer) { inner.forward(layer); }
        void logits(std::span<float> out) {
            inner.logits(out);
            out[3] = std::numeric_limits<float>::quiet_NaN();
        }
    };

    [[nodiscard]] auto layers() const { return sound.layers(); }
    [[nodiscard]] std::size_t vocabulary() const { return sound.vocabulary(); }
    [[nodiscard]] std::size_t max_positions() const { return sound.max_positions(); }
    template <class Lease>
    [[nodiscard]] pass<Lease> make_forward_pass(kv::thread_pool& threads) const {
        return {sound.make_forward_pass<Lease>(threads)};
    }
};

} // namespace

TEST_CASE("a logit that is no number is an error, not a word") {
    const broken_model model{random_model()};
    host here(model.sound);
    kv::pipeline pipeline(here.store, model, here.pool);
    const auto said = kv::generate(pipeline, some_tokens(model.sound, 5, 2), kv::sampler{}, {.max_tokens = 2}, go_on);
    REQUIRE_FALSE(said.has_value());
    CHECK(said.error().field == "logits");
}

namespace {

// Random weights, one of which is infinite.
struct damaged_weights {
    const kv::random_weights& sound;
    std::string damaged;
    std::vector<std::byte>& copy;

    [[nodiscard]] kv::result<kv::tensor_view> tensor(std::string_view name,
                                                     std::initializer_list<std::size_t> shape) const {
        auto found = sound.tensor(name, shape);
        if (!found || name != damaged)
            return found;
        copy.assign(found->bytes.begin(), found->bytes.end());
        const float infinite = std::numeric_limits<float>::infinity();
        std::memcpy(copy.data() + 5 * sizeof infinite, &infinite, sizeof infinite);
        found->bytes = copy;
        return found;
    }
};

} // namespace

TEST_CASE("an infinite weight is an error, in int8 too") {
    const kv::model_config config{.hidden_size = 48,
                                  .intermediate_size = 80,
                                  .layers = 2,
                                  .heads = 6,
                                  .kv_heads = 2,
                                  .head_dim = 24,
                                  .vocabulary = 131};
    const kv::random_weights sound(config, 7, kv::dtype::f32);
    kv::thread_pool threads;
    for (const char* name : {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                             "model.layers.1.mlp.up_proj.weight", "lm_head.weight"}) {
        std::vector<std::byte> copy;
        auto weights = kv::load_weights(config, damaged_weights{sound, name, copy}, [](std::size_t, std::size_t) {});
        REQUIRE(weights.has_value());
        const kv::transformer model(config, std::move(*weights)), rounded = model.in_int8(threads);
        for (const kv::transformer* each : {&model, &rounded}) {
            host here(*each);
            const auto said = kv::generate(here.pipeline, some_tokens(*each, 5, 2), {}, {.max_tokens = 2}, go_on);
            INFO(name << (each == &rounded ? " in int8" : ""));
            CHECK_FALSE(said.has_value());
        }
    }
}
