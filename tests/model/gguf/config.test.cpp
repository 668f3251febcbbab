// SPDX-License-Identifier: MIT
#include <kvcache/model/gguf/config.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>
#include <support/gguf_builder.hpp>

namespace kv = kvcache;
using kv::gguf_type;
using testing_files::gguf_builder;

namespace {

/// A llama of one layer, as far as the configuration goes, without the key `left_out`.
gguf_builder described(const std::string& left_out = "") {
    gguf_builder made;
    made.text("general.architecture", "llama");
    const std::pair<const char*, std::uint32_t> numbers[] = {
        {"llama.block_count", 1},         {"llama.context_length", 256},     {"llama.embedding_length", 16},
        {"llama.feed_forward_length", 8}, {"llama.attention.head_count", 4}, {"llama.attention.head_count_kv", 2}};
    for (const auto& [key, value] : numbers)
        if (key != left_out)
            made.number(key, value);
    if (left_out != "llama.attention.layer_norm_rms_epsilon")
        made.number("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    made.tensor("token_embd.weight", {10, 16}, 0, std::string(640, '\0'));
    return made;
}

kv::result<kv::model_config> read(const gguf_builder& built) {
    const testing_files::temporary_directory directory;
    directory.write("m.gguf", built.file());
    const auto file = kv::gguf_checkpoint::open(directory.path() / "m.gguf");
    REQUIRE(file);
    return kv::read_model_config(*file);
}
std::string refused(const gguf_builder& built) {
    const auto config = read(built);
    if (config)
        return "";
    CHECK(config.error().message.starts_with("m.gguf: " + config.error().field));
    return config.error().field;
}
/// The field of the error if this key is added.
template <class N>
std::string with(const std::string& key, N value) {
    return refused(described(key).number(key, value));
}

} // namespace

TEST_CASE("the configuration of a GGUF model comes from its keys and tensors") {
    const auto config = read(described());
    REQUIRE(config);
    CHECK(config->architecture == "llama");
    CHECK(config->hidden_size == 16);
    CHECK(config->intermediate_size == 8);
    CHECK(config->layers == 1);
    CHECK(config->heads == 4);
    CHECK(config->kv_heads == 2);
    CHECK(config->head_dim == 4);
    CHECK(config->vocabulary == 10);
    CHECK(config->max_positions == 256);
    CHECK(config->rms_norm_eps == 1e-5F);
    CHECK(config->rope == kv::rope_config{});
    CHECK(config->tied_head);
    CHECK_FALSE(config->qkv_bias);
    CHECK(config->eos.empty());

    gguf_builder more = described();
    more.number("llama.attention.key_length", 8u).number("llama.attention.value_length", 8u);
    more.number("llama.rope.freq_base", 5e5F).number("llama.rope.dimension_count", 8u);
    more.texts("tokenizer.ggml.tokens", {"a", "b", "<|im_end|>", "c", "d", "e", "f", "g", "h", "i"});
    more.number("tokenizer.ggml.bos_token_id", 1u).number("tokenizer.ggml.eos_token_id", 3u);
    more.number("tokenizer.ggml.eot_token_id", 4u).number("llama.attention.sliding_window", 256u);
    more.numbers<std::uint32_t>("llama.rope.scaling.original_context_length", {1});
    more.number("llama.expert_count", 0u).number("llama.attention.causal", true);
    more.tensor("output.weight", {10, 16}, 0, std::string(640, '\0'));
    more.tensor("blk.0.attn_q.bias", {32}, 0, std::string(128, '\0'));
    more.tensor("rope_freqs.weight", {4}, 0,
                gguf_builder::encoded(1.0F) + gguf_builder::encoded(2.0F) + gguf_builder::encoded(3.0F) +
                    gguf_builder::encoded(4.0F));
    const auto rich = read(more);
    INFO((rich ? std::string() : rich.error().message));
    REQUIRE(rich);
    CHECK(rich->head_dim == 8);
    CHECK(rich->rope.theta == 5e5);
    CHECK(rich->rope.scaling == kv::rope_config::kind::factors);
    CHECK(rich->rope.factors == std::vector<float>{1, 2, 3, 4});
    CHECK_FALSE(rich->tied_head);
    CHECK(rich->qkv_bias);
    CHECK(rich->bos == std::vector{kv::token_id{1}});
    CHECK(rich->eos == std::vector{kv::token_id{3}, kv::token_id{4}, kv::token_id{2}});
}

TEST_CASE("a factor of RoPE is linear unless its type says otherwise") {
    const auto kind = [](const std::function<void(gguf_builder&)>& change) {
        gguf_builder built = described();
        change(built);
        const auto config = read(built);
        REQUIRE(config);
        return std::pair(config->rope.scaling, config->rope.factor);
    };
    using scaling = kv::rope_config::kind;
    CHECK(kind([](auto& b) { b.number("llama.rope.scaling.factor", 4.0F); }) == std::pair(scaling::linear, 4.0));
    CHECK(kind([](auto& b) { b.number("llama.rope.scale_linear", 2.0F); }) == std::pair(scaling::linear, 2.0));
    CHECK(kind([](auto& b) {
              b.number("llama.rope.scaling.factor", 4.0F).text("llama.rope.scaling.type", "none");
          }).first == scaling::none);
    CHECK(kind([](auto& b) { b.number("llama.rope.scaling.factor", 1.0F); }).first == scaling::none);
    CHECK(kind([](auto& b) { b.number("llama.rope.scaling.factor", 4.0F).text("llama.rope.scaling.type", "yarn"); }) ==
          std::pair(scaling::yarn, 4.0));
}

TEST_CASE("keys of GGUF that are missing, malformed or change the results are refused by name") {
    for (const char* key :
         {"llama.block_count", "llama.context_length", "llama.embedding_length", "llama.feed_forward_length",
          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"})
        CHECK(refused(described(key)) == key);
    CHECK(refused(gguf_builder()) == "general.architecture");
    CHECK(refused(gguf_builder().text("general.architecture", "gemma9")) == "general.architecture");
    CHECK(refused(described().text("general.type", "adapter")) == "general.type");

    CHECK(with("llama.block_count", -1) == "llama.block_count");
    CHECK(with("llama.block_count", 1.5F) == "llama.block_count");
    CHECK(with("llama.block_count", 0u) == "llama.block_count");
    CHECK(with("llama.block_count", 2u) == "llama.block_count"); // more than there are tensors
    CHECK(with("llama.block_count", 4000000000u) == "llama.block_count");
    CHECK(with("llama.attention.head_count", 3u) == "llama.attention.head_count");
    CHECK(with("llama.attention.head_count_kv", 3u) == "llama.attention.head_count_kv");
    CHECK(with("llama.attention.layer_norm_rms_epsilon", 0.0F) == "llama.attention.layer_norm_rms_epsilon");
    CHECK(with("llama.attention.key_length", 5u) == "llama.attention.key_length");
    CHECK(with("llama.attention.value_length", 8u) == "llama.attention.value_length");
    CHECK(with("llama.rope.dimension_count", 2u) == "llama.rope.dimension_count");
    CHECK(with("llama.rope.freq_base", 0.0F) == "llama.rope.freq_base");
    CHECK(with("llama.rope.scaling.attn_factor", 1.2F) == "llama.rope.scaling.attn_factor");
    CHECK(with("llama.attention.sliding_window", 100u) == "llama.attention.sliding_window");
    CHECK(with("llama.expert_count", 8u) == "llama.expert_used_count"); // which is missing
    CHECK(with("llama.logit_scale", 0.5F) == "llama.logit_scale");
    CHECK(with("llama.attention.causal", false) == "llama.attention.causal");
    CHECK(with("llama.invented", 1u) == "llama.invented");
    CHECK(with("llama.vocab_size", 11u) == "llama.vocab_size");
    CHECK(refused(described()
                      .texts("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"})
                      .number("llama.vocab_size", 11u)) == "llama.vocab_size");
    CHECK(with("tokenizer.ggml.eos_token_id", 10u) == "tokenizer.ggml.eos_token_id");
    CHECK(with("tokenizer.ggml.eos_token_id", 1.0F) == "tokenizer.ggml.eos_token_id");
    CHECK(refused(described().text("llama.rope.scaling.type", "longrope")) == "llama.rope.scaling.type");
    CHECK(refused(described().text("llama.rope.scaling.type", "yarn")) == "llama.rope.scaling.factor");
    CHECK(refused(described()
                      .text("llama.rope.scaling.type", "yarn")
                      .number("llama.rope.scaling.factor", 4.0F)
                      .number("llama.rope.scaling.yarn_ext_factor", 0.5F)) == "llama.rope.scaling.yarn_ext_factor");
    CHECK(refused(described().texts("tokenizer.ggml.tokens", {"a"})) == "tokenizer.ggml.tokens");
    CHECK(refused(described().number("tokenizer.ggml.tokens", 1)) == "tokenizer.ggml.tokens");
    CHECK(refused(described().tensor("rope_freqs.weight", {3}, 0, std::string(12, '\1'))) == "rope_freqs.weight");
    CHECK(refused(described().tensor("rope_freqs.weight", {2}, 0, std::string(8, '\0'))) == "rope_freqs.weight");

    // An array has the value of each layer.
    const std::string key = "llama.feed_forward_length";
    CHECK(refused(described(key).numbers<std::int32_t>(key, {8, 8})).empty());
    CHECK(refused(described(key).numbers<std::int32_t>(key, {8, 9})) == key);
    CHECK(refused(described(key).numbers<std::int32_t>(key, {})) == key);
}

TEST_CASE("which layers of a GGUF model are recurrent comes from a list, or from an interval") {
    // Qwen3.5 of four layers.
    const auto layers = [](const std::vector<bool>& recurrent) {
        gguf_builder made;
        made.text("general.architecture", "qwen35");
        const std::pair<const char*, std::uint32_t> numbers[] = {
            {"block_count", 4},          {"context_length", 256},       {"embedding_length", 16},
            {"feed_forward_length", 8},  {"attention.head_count", 4},   {"attention.head_count_kv", 2},
            {"attention.key_length", 8}, {"attention.value_length", 8}, {"rope.dimension_count", 4},
            {"ssm.conv_kernel", 4},      {"ssm.group_count", 2},        {"ssm.time_step_rank", 4},
            {"ssm.state_size", 8},       {"ssm.inner_size", 32},        {"full_attention_interval", 2}};
        for (const auto& [key, value] : numbers)
            made.number(std::string("qwen35.") + key, value);
        made.number("qwen35.attention.layer_norm_rms_epsilon", 1e-5F);
        if (!recurrent.empty())
            made.flags("qwen35.attention.recurrent_layers", recurrent);
        made.tensor("token_embd.weight", {10, 16}, 0, std::string(640, '\0'));
        for (const char* layer : {"0", "1", "2", "3"})
            made.tensor(std::string("blk.") + layer + ".attn_norm.weight", {16}, 0, std::string(64, '\0'));
        return made;
    };
    const auto marked = [&](const std::vector<bool>& recurrent) {
        const auto config = read(layers(recurrent));
        REQUIRE((config ? std::string() : config.error().message) == "");
        std::vector<bool> made;
        for (std::size_t i = 0; i < config->layers; ++i)
            made.push_back(config->layer(i).recurrent);
        return made;
    };
    CHECK(marked({}) == std::vector<bool>{true, false, true, false});
    const std::vector<bool> some{false, true, true, false};
    CHECK(marked(some) == some);
    CHECK(refused(layers({true, false, true})) == "qwen35.attention.recurrent_layers");
    CHECK(refused(layers({}).number("qwen35.attention.recurrent_layers", std::uint32_t{4})) ==
          "qwen35.attention.recurrent_layers");
}
