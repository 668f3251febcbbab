// SPDX-License-Identifier: MIT
// What layers have of their own (Gemma 4), from config.json.
#include <kvcache/formats/json.hpp>
#include <kvcache/model/huggingface/config.hpp>

#include <string>
#include <string_view>

#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>

namespace kv = kvcache;
using kv::json;

namespace {

// Four layers, of which the second and the last attend to all tokens.
json described(std::string_view change = "{}") {
    json made = json::parse(R"({"model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 101,
        "vocab_size_per_layer_input": 101, "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})");
    const json changes = json::parse(change);
    for (const auto& [key, value] : changes.items())
        made[key] = value;
    return made;
}

kv::result<kv::model_config> read(std::string_view change = "{}") {
    const testing_files::temporary_directory directory;
    directory.write("config.json", described(change).dump());
    return kv::read_model_config(directory.path());
}
kv::model_config accepted(std::string_view change = "{}") {
    const auto made = read(change);
    INFO((made ? "" : made.error().message));
    REQUIRE(made);
    return *made;
}

} // namespace

TEST_CASE("layers of Gemma 4 have heads, MLPs and inputs of their own") {
    const kv::model_config made = accepted();
    CHECK(made.per_layer_size == 256);
    CHECK(made.score_scale == 1.0F);
    CHECK((made.value_norm && made.layer_scales && made.needs_groups()));
    CHECK(made.rope.turning == 4); // a quarter of 16 pairs
    CHECK(made.window_rope->turning == 0);
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK(made.layer(i).window == (i % 2 == 0 ? 512 : 0));
        CHECK(made.layer(i).head_dim == (i % 2 == 0 ? 16 : 32));
        CHECK(made.layer(i).kv_heads == 4);
        CHECK(made.layer(i).intermediate_size == 96);
        CHECK((!made.layer(i).reads && !made.layer(i).keys_are_values));
    }

    const kv::model_config shared = accepted(R"({"num_kv_shared_layers": 2, "use_double_wide_mlp": true})");
    CHECK(shared.layer(2).reads == 0);
    CHECK(shared.layer(3).reads == 1);
    CHECK(!shared.layer(1).reads);
    CHECK(shared.layer(1).intermediate_size == 96);
    CHECK(shared.layer(2).intermediate_size == 192);

    const kv::model_config values = accepted(
        R"({"attention_k_eq_v": true, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision"})");
    CHECK(values.per_layer_size == 0);
    CHECK((values.layer(1).keys_are_values && !values.layer(0).keys_are_values));
    CHECK(values.layer(1).kv_heads == 2);
    CHECK(values.layer(0).kv_heads == 4);

    const kv::model_config listed =
        accepted(R"({"per_layer_config": {"1": {"head_dim": 24}, "3": {"head_dim": 24, "num_key_value_heads": 2}}})");
    CHECK(listed.layer(1).head_dim == 24);
    CHECK(listed.layer(3).kv_heads == 2);
    CHECK(listed.rope.turning == 3);
    CHECK(accepted(R"({"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6},
                                           "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})")
              .rope.turning == 0);
}

TEST_CASE("what layers of Gemma 4 cannot have is refused by its field") {
    const struct {
        std::string_view change, field;
    } cases[] = {
        {R"({"enable_moe_block": true})", "enable_moe_block"},
        {R"({"use_bidirectional_attention": "all"})", "use_bidirectional_attention"},
        {R"({"vocab_size_per_layer_input": 100})", "vocab_size_per_layer_input"},
        {R"({"num_kv_shared_layers": 3})", "num_kv_shared_layers"}, // no full layer is left to read
        {R"({"num_kv_shared_layers": 5})", "num_kv_shared_layers"},
        {R"({"per_layer_config": []})", "per_layer_config"},
        {R"({"per_layer_config": {"1": 3}})", "per_layer_config.1"},
        {R"({"per_layer_config": {"1": {"head_dim": -1}}})", "per_layer_config.1.head_dim"},
        {R"({"per_layer_config": {"1": {"sliding_window": 3}}})", "per_layer_config.1.sliding_window"},
        {R"({"per_layer_config": {"1": {"head_dim": 33}}})", "head_dim"},
        {R"({"per_layer_config": {"1": {"head_dim": 24}}})", "head_dim"}, // and that of the last layer is 16
        {R"({"per_layer_config": {"1": {"num_key_value_heads": 3}}})", "num_key_value_heads"},
        {R"({"global_head_dim": 5000})", "head_dim"},
        {R"({"hidden_size_per_layer_input": 100000})", "per_layer_size"},
        {R"({"rope_parameters": null})", "rope_parameters"},
        {R"({"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.0}}})",
         "rope_parameters.full_attention.partial_rotary_factor"},
        {R"({"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 1.5}}})",
         "rope_parameters.full_attention.partial_rotary_factor"},
        {R"({"rope_parameters": {"full_attention": {"rope_type": "proportional", "factor": 2.0}}})",
         "rope_parameters.full_attention.factor"},
        {R"({"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}})",
         "rope_parameters.full_attention.partial_rotary_factor"},
    };
    for (const auto& [change, field] : cases) {
        INFO(change);
        const auto made = read(change);
        REQUIRE_FALSE(made);
        CHECK(made.error().field == field);
    }
}
