// SPDX-License-Identifier: MIT
#include <kvcache/model/config.hpp>
#include <kvcache/model/weight_names.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

kv::model_config tiny() {
    kv::model_config config;
    config.hidden_size = 12;
    config.intermediate_size = 20;
    config.layers = 2;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 6;
    config.vocabulary = 50;
    return config;
}

template <class Change>
std::string refused_field(Change change) {
    kv::model_config config = tiny();
    change(config);
    const auto fine = config.check();
    return fine ? "" : fine.error().field;
}

} // namespace

TEST_CASE("a configuration whose extents fit together passes its check") {
    CHECK(tiny().check());
    CHECK(refused_field([](auto& c) { c.kv_heads = 1; }).empty());
    CHECK(refused_field([](auto& c) { c.kv_heads = 4; }).empty());
    CHECK(refused_field([](auto& c) { c.rope.scaling = kv::rope_config::kind::llama3; }).empty());
}

TEST_CASE("a configuration that cannot exist is refused by the name of its field") {
    using config = kv::model_config;
    constexpr auto most = std::numeric_limits<std::size_t>::max();
    CHECK(refused_field([](config& c) { c.hidden_size = 0; }) == "hidden_size");
    CHECK(refused_field([](config& c) { c.intermediate_size = most; }) == "intermediate_size");
    CHECK(refused_field([](config& c) { c.layers = 0; }) == "layers");
    CHECK(refused_field([](config& c) { c.layers = 1u << 30; }) == "layers");
    CHECK(refused_field([](config& c) { c.heads = 0; }) == "heads");
    CHECK(refused_field([](config& c) { c.kv_heads = 0; }) == "kv_heads");
    CHECK(refused_field([](config& c) { c.kv_heads = 3; }) == "kv_heads");
    CHECK(refused_field([](config& c) { c.kv_heads = 8; }) == "kv_heads");
    CHECK(refused_field([](config& c) { c.head_dim = 5; }) == "head_dim");
    CHECK(refused_field([](config& c) { c.head_dim = most - 1; }) == "head_dim");
    CHECK(refused_field([](config& c) { c.vocabulary = 0; }) == "vocabulary");
    CHECK(refused_field([](config& c) { c.max_positions = 0; }) == "max_positions");
    CHECK(refused_field([](config& c) { c.rms_norm_eps = 0; }) == "rms_norm_eps");
    CHECK(refused_field([](config& c) { c.rms_norm_eps = std::numeric_limits<float>::quiet_NaN(); }) == "rms_norm_eps");
    CHECK(refused_field([](config& c) { c.rope.theta = 0; }) == "rope.theta");
    CHECK(refused_field([](config& c) { c.rope.theta = std::numeric_limits<double>::infinity(); }) == "rope.theta");
    CHECK(refused_field([](config& c) { c.rope.factor = 0; }) == "rope.factor");
    CHECK(refused_field([](config& c) {
              c.rope.scaling = kv::rope_config::kind::llama3;
              c.rope.high_freq_factor = c.rope.low_freq_factor;
          }) == "rope.high_freq_factor");
    CHECK(refused_field([](config& c) { c.eos = {kv::token_id{-1}}; }) == "eos");
    CHECK(refused_field([](config& c) { c.bos = {kv::token_id{-1}}; }) == "bos");
}

TEST_CASE("a model's weights have the names and shapes of its switches") {
    kv::model_config config = tiny();
    const auto shape_of = [&](const std::string& name) {
        for (const auto& weight : kv::weights_of(config))
            if (weight.name == name)
                return weight.shape;
        return std::vector<std::size_t>{};
    };
    using shape = std::vector<std::size_t>;
    CHECK(kv::weights_of(config).size() == 1 + 2 * 9 + 2);
    CHECK(shape_of("model.embed_tokens.weight") == shape{50, 12});
    CHECK(shape_of("lm_head.weight") == shape{50, 12});
    CHECK(shape_of("model.norm.weight") == shape{12});
    CHECK(shape_of("model.layers.1.self_attn.q_proj.weight") == shape{24, 12});
    CHECK(shape_of("model.layers.1.self_attn.v_proj.weight") == shape{12, 12});
    CHECK(shape_of("model.layers.0.self_attn.o_proj.weight") == shape{12, 24});
    CHECK(shape_of("model.layers.0.mlp.gate_proj.weight") == shape{20, 12});
    CHECK(shape_of("model.layers.0.mlp.down_proj.weight") == shape{12, 20});

    config.tied_head = true;
    CHECK(shape_of("lm_head.weight").empty());
    config.qkv_bias = true;
    CHECK(shape_of("model.layers.1.self_attn.q_proj.bias") == shape{24});
    CHECK(shape_of("model.layers.1.self_attn.k_proj.bias") == shape{12});
    CHECK(shape_of("model.layers.1.self_attn.o_proj.bias").empty());
    config.output_bias = true;
    CHECK(shape_of("model.layers.1.self_attn.o_proj.bias") == shape{12});
    config.mlp_bias = true;
    CHECK(shape_of("model.layers.1.mlp.up_proj.bias") == shape{20});
    CHECK(shape_of("model.layers.1.mlp.down_proj.bias") == shape{12});
    config.qk_norm = kv::head_norm::each;
    CHECK(shape_of("model.layers.1.self_attn.q_norm.weight") == shape{6});
    CHECK(shape_of("model.layers.1.self_attn.k_norm.weight") == shape{6});
}
