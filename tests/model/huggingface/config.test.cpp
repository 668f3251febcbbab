// SPDX-License-Identifier: MIT
#include <kvcache/formats/json.hpp>
#include <kvcache/model/huggingface/config.hpp>

#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>

namespace kv = kvcache;
using kv::json;
using kv::token_id;

namespace {

/// A configuration without a single optional field.
json bare(std::string_view model_type) {
    return json{{"model_type", model_type}, {"hidden_size", 64},         {"intermediate_size", 96},
                {"num_hidden_layers", 3},   {"num_attention_heads", 32}, {"vocab_size", 101}};
}

/// `object` with the members of `change`, a JSON text.
json with(json object, std::string_view change) {
    const json changes = json::parse(change);
    for (const auto& [key, value] : changes.items())
        object[key] = value;
    return object;
}

json without(json object, const std::string& key) {
    object.erase(key);
    return object;
}

kv::result<kv::model_config> read(const json& config, std::string_view generation = "") {
    const testing_files::temporary_directory directory;
    directory.write("config.json", config.dump());
    if (!generation.empty())
        directory.write("generation_config.json", generation);
    return kv::read_model_config(directory.path());
}

kv::model_config accepted(const json& config, std::string_view generation = "") {
    const auto answer = read(config, generation);
    INFO(config.dump());
    INFO((answer ? "" : answer.error().message));
    REQUIRE(answer);
    return *answer;
}

std::string refused(const json& config) {
    const auto answer = read(config);
    if (answer)
        return "accepted: " + config.dump();
    CHECK(answer.error().message.find("config.json: " + answer.error().field) != std::string::npos);
    return answer.error().field;
}

using ids = std::vector<token_id>;

} // namespace

TEST_CASE("absent fields have the defaults of their architecture") {
    const auto llama = accepted(bare("llama"));
    CHECK(llama.architecture == "llama");
    CHECK(llama.kv_heads == 32);
    CHECK(llama.head_dim == 2);
    CHECK(llama.max_positions == 2048);
    CHECK(llama.rms_norm_eps == 1e-6F);
    CHECK(llama.rope == kv::rope_config{});
    CHECK_FALSE(llama.tied_head);
    CHECK_FALSE((llama.qkv_bias || llama.output_bias || llama.mlp_bias));
    CHECK(llama.qk_norm == kv::head_norm::none);
    CHECK(llama.bos == ids{token_id{1}});
    CHECK(llama.eos == ids{token_id{2}});

    const auto mistral = accepted(with(bare("mistral"), R"({"sliding_window": null})"));
    CHECK(mistral.kv_heads == 8);
    CHECK(mistral.max_positions == 131072);
    CHECK(mistral.eos == ids{token_id{2}});

    const auto qwen2 = accepted(bare("qwen2"));
    CHECK(qwen2.kv_heads == 32);
    CHECK(qwen2.head_dim == 2);
    CHECK(qwen2.max_positions == 32768);
    CHECK(qwen2.qkv_bias);
    CHECK_FALSE((qwen2.output_bias || qwen2.mlp_bias));
    CHECK(qwen2.qk_norm == kv::head_norm::none);
    CHECK(qwen2.bos.empty());
    CHECK(qwen2.eos.empty());

    const auto qwen3 = accepted(bare("qwen3"));
    CHECK(qwen3.head_dim == 128);
    CHECK(qwen3.qk_norm == kv::head_norm::each);
    CHECK_FALSE((qwen3.qkv_bias || qwen3.output_bias));
}

TEST_CASE("null counts of KV heads and head sizes follow from the other fields") {
    CHECK(accepted(with(bare("mistral"), R"({"num_key_value_heads": null, "head_dim": null, "sliding_window": null})"))
              .kv_heads == 32);
    CHECK(accepted(with(bare("llama"), R"({"num_key_value_heads": 4, "head_dim": 10})")).head_dim == 10);
    CHECK(accepted(with(bare("qwen2"), R"({"head_dim": null, "num_attention_heads": 4, "num_key_value_heads": 1})"))
              .head_dim == 16);
}

TEST_CASE("switches are read") {
    CHECK(accepted(with(bare("llama"), R"({"tie_word_embeddings": true})")).tied_head);
    const auto biases = accepted(with(bare("llama"), R"({"attention_bias": true, "mlp_bias": true})"));
    CHECK((biases.qkv_bias && biases.output_bias && biases.mlp_bias));
    const auto qwen3 = accepted(with(bare("qwen3"), R"({"attention_bias": true})"));
    CHECK((qwen3.qkv_bias && qwen3.output_bias));
    CHECK_FALSE(accepted(with(bare("qwen2"), R"({"attention_bias": true})")).output_bias);
    CHECK(accepted(with(bare("llama"), R"({"hidden_act": "swish"})")).layers == 3);
    CHECK(accepted(with(bare("llama"), R"({"architectures": ["LLaMAForCausalLM"]})")).layers == 3);
    CHECK(accepted(with(bare("llama"), R"({"rms_norm_eps": 1e-05, "max_position_embeddings": 77})")).max_positions ==
          77);
}

TEST_CASE("end-of-text ids may be one, many or none, and generation_config.json adds its own") {
    const auto eos = [](std::string_view change, std::string_view generation) {
        return accepted(with(bare("llama"), change), generation).eos;
    };
    CHECK(eos(R"({"eos_token_id": 7})", "") == ids{token_id{7}});
    CHECK(eos(R"({"eos_token_id": [7, 8, 7]})", "") == ids{token_id{7}, token_id{8}});
    CHECK(eos(R"({"eos_token_id": null})", "").empty());
    CHECK(eos(R"({"eos_token_id": 7})", R"({"eos_token_id": [9, 7]})") == ids{token_id{7}, token_id{9}});
    CHECK(eos("{}", R"({"eos_token_id": 9})") == ids{token_id{9}});
    CHECK(eos("{}", R"({"temperature": 1})") == ids{token_id{2}});
    CHECK_FALSE(read(bare("llama"), R"({"eos_token_id": "x"})"));
    CHECK_FALSE(read(bare("llama"), "[]"));
    CHECK_FALSE(read(bare("llama"), "{"));
}

TEST_CASE("RoPE is read in the older and the newer form, in each spelling") {
    using kind = kv::rope_config::kind;
    const auto rope = [](std::string_view change) { return accepted(with(bare("llama"), change)).rope; };
    const auto is = [](const kv::rope_config& got, kind scaling, double theta, double factor) {
        return got.scaling == scaling && got.theta == theta && got.factor == factor;
    };
    CHECK(is(rope(R"({"rope_theta": 500000, "rope_scaling": null})"), kind::none, 500000, 1));
    CHECK(is(rope(R"({"rope_scaling": {"type": "linear", "factor": 2}})"), kind::linear, 10000, 2));
    CHECK(is(rope(R"({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.5}})"), kind::linear, 10000,
             2.5));
    CHECK(is(rope(R"({"rope_scaling": {"rope_type": "default"}})"), kind::none, 10000, 1));
    CHECK(is(rope(R"({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})"), kind::none, 1e6, 1));
    CHECK(is(rope(R"({"rope_parameters": {"rope_theta": 1e6}})"), kind::none, 1e6, 1));
    CHECK(is(rope(R"({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4}})"),
             kind::linear, 1e6, 4));

    const std::string body = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0)";
    for (const std::string& change :
         {R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 99,)" +
              body + "}}",
          R"({"rope_theta": 5e5, "rope_scaling": {"type": "llama3", "original_max_position_embeddings": 99,)" + body +
              "}}",
          R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "original_max_position_embeddings": 99,)" +
              body + "}}",
          R"({"max_position_embeddings": 99, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3",)" + body +
              "}}"}) {
        const auto got = rope(change);
        CHECK(is(got, kind::llama3, 5e5, 8));
        CHECK(got.low_freq_factor == 1);
        CHECK(got.high_freq_factor == 4);
        CHECK(got.original_max_positions == 99);
    }
}

TEST_CASE("YaRN is read with its defaults and with values of its own") {
    const auto rope = [](std::string_view change) { return accepted(with(bare("qwen3"), change)).rope; };
    const auto usual = rope(R"({"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                "original_max_position_embeddings": 32768}})");
    CHECK(usual.scaling == kv::rope_config::kind::yarn);
    CHECK(usual.factor == 4);
    CHECK(usual.original_max_positions == 32768);
    CHECK(usual.beta_fast == 32);
    CHECK(usual.beta_slow == 1);
    CHECK(usual.truncate);
    CHECK(std::abs(usual.attention_factor - 1.138629436111989) < 1e-14);
    const auto own = rope(R"({"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 16, "beta_slow": 2,
                              "truncate": false, "attention_factor": 1.5, "original_max_position_embeddings": 4096}})");
    CHECK(own.beta_fast == 16);
    CHECK(own.beta_slow == 2);
    CHECK_FALSE(own.truncate);
    CHECK(own.attention_factor == 1.5);
}

TEST_CASE("a window that hides nothing is no obstacle") {
    CHECK(accepted(with(bare("mistral"), R"({"sliding_window": 4096, "max_position_embeddings": 4096})")).layers == 3);
    CHECK(accepted(with(bare("qwen2"), R"({"sliding_window": 128, "use_sliding_window": false})")).layers == 3);
    CHECK(accepted(with(bare("qwen3"), R"({"layer_types": ["full_attention","full_attention","full_attention"]})"))
              .layers == 3);
}

TEST_CASE("layers keep a rotation of their own where their window hides nothing") {
    const auto short_context =
        accepted(with(bare("gemma3_text"), R"({"sliding_window": 64, "max_position_embeddings": 64})"));
    REQUIRE(short_context.window_rope.has_value());
    CHECK(short_context.window_rope->theta == 10000.0);
    CHECK(short_context.layer(0).window == 64);
}

TEST_CASE("neutral values of foreign fields are no obstacle") {
    for (const char* change :
         {R"({"partial_rotary_factor": 1.0})", R"({"rope_interleaved": false})", R"({"quantization_config": null})",
          R"({"final_logit_softcapping": null})", R"({"logits_scaling": 1})", R"({"num_experts": 0})",
          R"({"no_rope_layers": []})", R"({"pretraining_tp": 2})", R"({"torch_dtype": "bfloat16"})",
          R"({"attention_dropout": 0.1})", R"({"whatever": {"deep": [1]}})", R"({"rope_scaling": {}})"})
        CHECK(accepted(with(bare("llama"), change)).layers == 3);
}

TEST_CASE("what would run otherwise than in transformers is refused by its field") {
    const struct {
        const char* type;
        const char* change;
        const char* field;
    } cases[] = {
        {"qwen2_moe", "{}", "model_type"},
        {"phi", "{}", "model_type"},
        {"stablelm", "{}", "model_type"},
        {"internlm2", "{}", "model_type"},
        {"olmoe", "{}", "model_type"},
        {"gpt2", "{}", "model_type"},
        {"smollm9", "{}", "model_type"},
        {"deepseek_v3", "{}", "model_type"},
        {"", "{}", "model_type"},
        {"llama", R"({"model_type": 3})", "model_type"},
        {"llama", R"({"architectures": ["MixtralForCausalLM"]})", "architectures"},
        {"llama", R"({"architectures": ["LlamaForSequenceClassification"]})", "architectures"},
        {"llama", R"({"architectures": "LlamaForCausalLM"})", "architectures"},
        {"llama", R"({"hidden_act": "gelu"})", "hidden_act"},
        {"gemma", R"({"hidden_act": "silu"})", "hidden_act"},
        {"gemma2", R"({"hidden_act": "gelu"})", "hidden_act"},
        {"gemma2", R"({"hidden_act": ""})", "hidden_act"},
        {"llama", R"({"hidden_act": ""})", "hidden_act"},
        {"llama", R"({"hidden_act": 1})", "hidden_act"},
        {"llama", R"({"quantization_config": {"quant_method": "gptq"}})", "quantization_config"},
        {"llama", R"({"quantization": {"bits": 4}})", "quantization"},
        {"llama", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor"},
        {"llama", R"({"is_causal": false})", "is_causal"},
        {"llama", R"({"is_neox_style": false})", "is_neox_style"},
        {"llama", R"({"scale_attn_weights": false})", "scale_attn_weights"},
        {"llama", R"({"rope_interleaved": true})", "rope_interleaved"},
        {"llama", R"({"rope_interleave": true})", "rope_interleave"},
        {"llama", R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping"},
        {"llama", R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping"},
        {"llama", R"({"attention_multiplier": 0.1})", "attention_multiplier"},
        {"llama", R"({"query_pre_attn_scalar": 256})", "query_pre_attn_scalar"},
        {"llama", R"({"logits_scaling": 8})", "logits_scaling"},
        {"llama", R"({"num_local_experts": 8})", "num_local_experts"},
        {"llama", R"({"no_rope_layers": [1, 0, 1]})", "no_rope_layers"},
        {"llama", R"({"is_encoder_decoder": true})", "is_encoder_decoder"},
        {"mistral", R"({"attention_bias": true, "sliding_window": null})", "attention_bias"},
        {"qwen2", R"({"mlp_bias": true})", "mlp_bias"},
        // windows
        {"mistral", R"({"sliding_window": "all"})", "sliding_window"},
        {"mistral", R"({"sliding_window": -1})", "sliding_window"},
        {"llama", R"({"sliding_window": 16})", "sliding_window"},
        {"llama", R"({"use_sliding_window": true})", "use_sliding_window"},
        {"qwen3", R"({"layer_types": ["full_attention","sliding_attention","full_attention"]})", "layer_types"},
        {"qwen3", R"({"layer_types": ["full_attention","chunked_attention","full_attention"]})", "layer_types"},
        {"qwen3", R"({"layer_types": ["full_attention"]})", "layer_types"},
        {"qwen3", R"({"layer_types": "full_attention"})", "layer_types"},
        {"mistral", R"({"sliding_window": 0})", "sliding_window"},
        {"granite", R"({"attention_multiplier": 0})", "attention_multiplier"},
        {"granite", R"({"logits_scaling": 0})", "logits_scaling"},
        {"mixtral", R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
        // RoPE
        {"llama", R"({"rope_scaling": {"type": "longrope", "factor": 4}})", "rope_scaling.type"},
        {"llama", R"({"rope_scaling": {"rope_type": "longrope"}})", "rope_scaling.rope_type"},
        {"llama", R"({"rope_scaling": {"type": "dynamic", "factor": 2}})", "rope_scaling.type"},
        {"llama", R"({"rope_scaling": {"type": "su"}})", "rope_scaling.type"},
        {"llama", R"({"rope_scaling": {"type": 4}})", "rope_scaling.type"},
        {"llama", R"({"rope_scaling": {"factor": 4}})", "rope_scaling.rope_type"},
        {"llama", R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor"},
        {"llama", R"({"rope_scaling": {"type": "linear", "factor": 0}})", "rope_scaling.factor"},
        {"llama", R"({"rope_scaling": {"type": "linear", "factor": -2.0}})", "rope_scaling.factor"},
        {"llama", R"({"rope_scaling": {"type": "linear", "factor": "2"}})", "rope_scaling.factor"},
        {"llama", R"({"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2}})", "rope_scaling.type"},
        {"llama", R"({"rope_scaling": {"type": "linear", "factor": 2, "mrope_section": [1]}})",
         "rope_scaling.mrope_section"},
        {"llama", R"({"rope_scaling": {"type": "linear", "factor": 2, "attention_factor": 1.1}})",
         "rope_scaling.attention_factor"},
        {"llama", R"({"rope_scaling": "linear"})", "rope_scaling"},
        {"llama", R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})", "rope_scaling.low_freq_factor"},
        {"llama",
         R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
         "rope_scaling.high_freq_factor"},
        {"llama", R"({"rope_parameters": {"rope_type": "dynamic", "factor": 4}})", "rope_parameters.rope_type"},
        {"llama", R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
         "rope_parameters.full_attention"},
        {"llama", R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}})",
         "rope_parameters.partial_rotary_factor"},
        {"llama", R"({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})",
         "rope_parameters.rope_theta"},
        {"llama", R"({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}})",
         "rope_scaling"},
        {"llama", R"({"rope_theta": 0})", "rope_theta"},
        {"llama", R"({"rope_theta": "10000"})", "rope_theta"},
        // extents
        {"llama", R"({"hidden_size": 0})", "hidden_size"},
        {"llama", R"({"hidden_size": -64})", "hidden_size"},
        {"llama", R"({"hidden_size": 64.0})", "hidden_size"},
        {"llama", R"({"hidden_size": "64"})", "hidden_size"},
        {"llama", R"({"hidden_size": true})", "hidden_size"},
        {"llama", R"({"hidden_size": 18446744073709551615, "head_dim": 2})", "hidden_size"},
        {"llama", R"({"hidden_size": 65})", "num_attention_heads"},
        {"llama", R"({"num_attention_heads": 0})", "num_attention_heads"},
        {"llama", R"({"num_attention_heads": 64})", "head_dim"},
        {"llama", R"({"num_key_value_heads": 0})", "num_key_value_heads"},
        {"llama", R"({"num_key_value_heads": 5})", "num_key_value_heads"},
        {"llama", R"({"head_dim": 7})", "head_dim"},
        {"llama", R"({"num_hidden_layers": 4294967296})", "num_hidden_layers"},
        {"llama", R"({"vocab_size": 99999999999})", "vocab_size"},
        {"llama", R"({"max_position_embeddings": 0})", "max_position_embeddings"},
        {"llama", R"({"rms_norm_eps": -1e-5})", "rms_norm_eps"},
        {"llama", R"({"rms_norm_eps": 1e300})", "rms_norm_eps"},
        {"llama", R"({"tie_word_embeddings": 1})", "tie_word_embeddings"},
        {"llama", R"({"attention_bias": "no"})", "attention_bias"},
        {"llama", R"({"eos_token_id": -1})", "eos_token_id"},
        {"llama", R"({"eos_token_id": 4294967296})", "eos_token_id"},
        {"llama", R"({"eos_token_id": [2, "3"]})", "eos_token_id"},
        {"llama", R"({"bos_token_id": 1.5})", "bos_token_id"},
    };
    for (const auto& [type, change, field] : cases) {
        INFO(type << " " << change);
        CHECK(refused(with(bare(type), change)) == field);
    }
    for (const char* field :
         {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
        CHECK(refused(without(bare("llama"), field)) == field);
}

TEST_CASE("a config.json that is absent, no JSON or no object is refused") {
    const testing_files::temporary_directory directory;
    CHECK(kv::read_model_config(directory.path()).error().code == kv::error_code::not_found);
    for (const char* text : {"", "{", "[]", "3", "{\"a\":1,\"a\":2}"}) {
        directory.write("config.json", text);
        INFO(text);
        const auto answer = kv::read_model_config(directory.path());
        REQUIRE_FALSE(answer);
        CHECK(answer.error().code == kv::error_code::malformed);
        CHECK(answer.error().field == "config.json");
    }
}
