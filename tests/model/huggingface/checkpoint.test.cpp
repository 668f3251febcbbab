// SPDX-License-Identifier: MIT
#include <kvcache/formats/json.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/checkpoint.hpp>
#include <kvcache/model/huggingface/config.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>

namespace kv = kvcache;
using testing_files::safetensors;
using testing_files::temporary_directory;

namespace {

/// A shard of one F32 tensor with one element.
std::string shard(const std::string& tensor, char byte) {
    return safetensors("{\"" + tensor + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                       std::string(4, byte));
}

std::string index(const std::string& weight_map) {
    return R"({"metadata":{"total_size":8,"deep":[[{"weight_map":{"x":"/"}}]]},"weight_map":)" + weight_map + "}";
}

constexpr const char* index_file = "model.safetensors.index.json";

/// Field of the error for a directory with two valid shards and this index.
std::string refused(const std::string& index_text) {
    const temporary_directory directory;
    directory.write("one", shard("a", 1));
    directory.write("two", shard("b", 2));
    directory.write("again", shard("a", 1));
    directory.write(index_file, index_text);
    const auto opened = kv::checkpoint::open(directory.path());
    return opened ? "accepted" : opened.error().field;
}

const std::filesystem::path goldens = test_folders::project() / "tests/data/checkpoints";

std::vector<std::filesystem::path> golden_directories() {
    std::vector<std::filesystem::path> all;
    for (const auto& entry : std::filesystem::directory_iterator(goldens))
        if (entry.is_directory())
            all.push_back(entry.path());
    return all;
}

} // namespace

TEST_CASE("a checkpoint is one file or the shards of an index") {
    const temporary_directory directory;
    directory.write("one", shard("a", 1));
    directory.write("two", shard("b", 2));
    directory.write(index_file, index(R"({"a":"one","b":"two"})"));
    const auto sharded = kv::checkpoint::open(directory.path());
    REQUIRE(sharded);
    CHECK(sharded->names() == std::vector<std::string>{"a", "b"});
    CHECK(sharded->contains("b"));
    CHECK_FALSE(sharded->contains("c"));
    const auto b = sharded->tensor("b", {1});
    REQUIRE(b);
    CHECK(std::to_integer<int>(b->bytes[3]) == 2);
    CHECK(sharded->tensor("b", {2}).error().field == "b.shape");
    CHECK(sharded->tensor("c", {1}).error().code == kv::error_code::not_found);

    directory.write("model.safetensors", shard("c", 3)); // takes precedence over the index, as in transformers
    const auto single = kv::checkpoint::open(directory.path());
    REQUIRE(single);
    CHECK(single->names() == std::vector<std::string>{"c"});
}

TEST_CASE("a lying index is refused by the name of its field") {
    CHECK(refused(index(R"({"a":"one","b":"two"})")) == "accepted");
    CHECK(refused(index(R"({"a":"one"})")) == "accepted");
    CHECK(refused(index(R"({"a":"one","b":"missing"})")) == "missing");
    CHECK(refused(index(R"({"a":"one","c":"two"})")) == "c");
    CHECK(refused(index(R"({"a":"two","b":"one"})")) == "a");
    CHECK(refused(index(R"({"a":"one","b":"again"})")) == "a");
    for (const char* name : {"../one", "/etc/passwd", "sub/one", "..", ".", "", "a\\\\b", "one\\u0000"})
        CHECK(refused(index(std::string("{\"a\":\"") + name + "\"}")) == "weight_map.a");
    CHECK(refused(index(R"({"a":"one","a":"one"})")) == "weight_map.a");
    CHECK(refused(index(R"({"a":1})")) == "weight_map.a");
    CHECK(refused(index(R"({"a":null})")) == "weight_map.a");
    CHECK(refused(index(R"({"a":{"b":"one"}})")) == "weight_map.a");
    CHECK(refused(index(R"({"a":["one"]})")) == "weight_map.a");
    CHECK(refused(index("{}")) == "weight_map");
    CHECK(refused(index("[]")) == "weight_map");
    CHECK(refused(index("\"one\"")) == "weight_map");
    CHECK(refused(R"({"weight_map":{"a":"one"},"weight_map":{"a":"one"}})") == "weight_map");
    CHECK(refused("{}") == "weight_map");
    CHECK(refused("[]") == "JSON");
    CHECK(refused("1") == "JSON");
    CHECK(refused("") == "JSON");
    CHECK(refused(R"({"weight_map":{"a":"one"}} x)") == "JSON");
    CHECK(refused("{\"weight_map\":" + std::string(1'000'000, '[')) == "weight_map");
}

TEST_CASE("a directory without weights that can be read is refused") {
    const temporary_directory directory;
    CHECK(kv::checkpoint::open(directory.path()).error().field == "model.safetensors");
    CHECK_FALSE(kv::checkpoint::open(directory.path() / "nowhere"));
    directory.write("pytorch_model.bin", "x");
    CHECK(kv::checkpoint::open(directory.path()).error().code == kv::error_code::not_found);
    directory.write("model.safetensors", "short");
    CHECK(kv::checkpoint::open(directory.path()).error().code == kv::error_code::truncated);
}

TEST_CASE("the digest is of names, dtypes, shapes and bytes, not of files") {
    const auto digest_of = [](auto fill) {
        const temporary_directory directory;
        fill(directory);
        return *kv::checkpoint::open(directory.path())->digest();
    };
    const auto single = [&](const std::string& header, const std::string& buffer) {
        return digest_of([&](const auto& d) { d.write("model.safetensors", safetensors(header, buffer)); });
    };
    const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
    const std::string b = R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})";
    const auto base = single("{" + a + "," + b + "}", std::string("\1\1\1\1\2\2\2\2"));
    // the same weights
    CHECK(single("{" + b + "," + a + "}  ", std::string("\1\1\1\1\2\2\2\2")) == base);
    CHECK(single(R"({"__metadata__":{"x":"y"},)" + a + "," + b + "}", std::string("\1\1\1\1\2\2\2\2")) == base);
    CHECK(single(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                 std::string("\2\2\2\2\1\1\1\1")) == base);
    CHECK(digest_of([](const auto& d) {
              d.write("one", shard("a", 1));
              d.write("two", shard("b", 2));
              d.write(index_file, index(R"({"a":"one","b":"two"})"));
          }) == base);
    // different weights
    std::set<std::string> distinct = {kv::to_string(base)};
    const auto add = [&](const std::string& header, const std::string& buffer) {
        CHECK(distinct.insert(kv::to_string(single(header, buffer))).second);
    };
    add("{" + a + "," + b + "}", std::string("\1\1\1\1\2\2\2\3"));
    add("{" + a + R"(,"c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", std::string("\1\1\1\1\2\2\2\2"));
    add("{" + a + R"(,"b":{"dtype":"I32","shape":[1],"data_offsets":[4,8]}})", std::string("\1\1\1\1\2\2\2\2"));
    add("{" + a + R"(,"b":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}})", std::string("\1\1\1\1\2\2\2\2"));
    add("{" + a + "}", std::string("\1\1\1\1"));
    add("{}", "");
}

TEST_CASE("every golden checkpoint opens, fits its configuration and has logits for each token") {
    const auto all = golden_directories();
    REQUIRE(all.size() >= 11);
    std::set<std::string> digests;
    for (const auto& directory : all) {
        INFO(directory);
        const auto config = kv::read_model_config(directory);
        REQUIRE(config);
        const auto weights = kv::checkpoint::open(directory);
        REQUIRE(weights);
        const auto fits = weights->holds(*config);
        CHECK(fits);
        const auto digest = weights->digest();
        REQUIRE(digest);
        CHECK(digests.insert(kv::to_string(*digest)).second);
        for (const auto& [name, shape, heads] : kv::weights_of(*config)) {
            const auto tensor = weights->tensor(name, shape);
            REQUIRE(tensor);
            std::vector<float> values(tensor->size());
            tensor->read(0, values);
            double sum = 0; // finite, and not the zeros or ones of an initialized model
            for (const float value : values)
                sum += std::abs(static_cast<double>(value) - std::round(static_cast<double>(value)));
            CHECK(std::isfinite(sum));
            CHECK(sum > 0);
        }
        const auto golden = kv::read_json(directory / "golden.json");
        REQUIRE(golden);
        const std::size_t positions = (*golden)["tokens"].size();
        CHECK((*golden)["vocabulary"] == config->vocabulary);
        CHECK(std::filesystem::file_size(directory / "logits.f32") == positions * config->vocabulary * 4);
    }
}

TEST_CASE("golden configurations have the values they were generated with") {
    using kind = kv::rope_config::kind;
    const auto read = [](const char* name) { return *kv::read_model_config(goldens / name); };
    const auto llama31 = read("llama3.1");
    CHECK(llama31.rope.scaling == kind::llama3);
    CHECK(llama31.rope.original_max_positions == 64);
    CHECK(llama31.eos.size() == 2);
    CHECK(read("llama-linear").rope.scaling == kind::linear);
    CHECK(read("llama").head_dim == 24);
    CHECK(read("llama").kv_heads == 2);
    CHECK(read("smollm2").tied_head);
    CHECK(read("smollm2").rope.theta == 100000);
    CHECK(read("mistral").head_dim == 80);
    CHECK(read("qwen2").qkv_bias);
    CHECK(read("qwen2").eos.size() == 2);
    CHECK(read("qwen3").qk_norm == kv::head_norm::each);
    CHECK(read("qwen3").rope.theta == 1000000);
    CHECK(read("llama-biases").output_bias);
}

namespace {

// A config.json with changed bytes is refused by name, or describes a model whose weights are looked for.
void change_configuration(const std::filesystem::path& golden, std::uint32_t seed, int rounds) {
    CAPTURE(golden.filename().string(), seed);
    std::mt19937 random(seed);
    std::ifstream in(golden / "config.json", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto weights = kv::checkpoint::open(golden);
    REQUIRE(weights);
    for (int round = 0; round < rounds; ++round) {
        std::string changed = text;
        for (std::uint32_t i = 0, n = 1 + static_cast<std::uint32_t>(random() % 3); i < n; ++i) {
            constexpr std::string_view letters = "0123456789.-eE,:[]{}\" ntf";
            char& one = changed[random() % changed.size()];
            one = random() % 8 == 0 ? static_cast<char>(random()) : letters[random() % letters.size()];
        }
        const testing_files::temporary_directory directory;
        directory.write("config.json", changed);
        const auto config = kv::read_model_config(directory.path());
        const auto refused = config ? std::optional<kv::error>() : config.error();
        if (refused) {
            CHECK_FALSE(refused->field.empty());
            CHECK_FALSE(refused->message.empty());
            continue;
        }
        const auto fits = weights->holds(*config);
        CHECK((fits || !fits.error().message.empty()));
    }
}

} // namespace

TEST_CASE("a configuration with changed bytes is refused or read, for each architecture") {
    for (const auto& entry : std::filesystem::directory_iterator(goldens))
        if (entry.is_directory())
            change_configuration(entry.path(), 7, 60);
}

TEST_CASE("many configurations with changed bytes are refused or read", "[.long]") {
    for (const auto& entry : std::filesystem::directory_iterator(goldens))
        if (entry.is_directory())
            change_configuration(entry.path(), 8, 1000);
}

TEST_CASE("a checkpoint that does not fit its configuration is refused by the tensor") {
    const auto fit = [](const char* name, auto change) {
        auto config = *kv::read_model_config(goldens / name);
        change(config);
        const auto fits = kv::checkpoint::open(goldens / name)->holds(config);
        return fits ? std::string() : fits.error().field;
    };
    using config = kv::model_config;
    CHECK(fit("qwen2", [](config&) {}).empty());
    CHECK(fit("qwen2", [](config& c) { c.qkv_bias = false; }) == "model.layers.0.self_attn.k_proj.bias");
    CHECK(fit("qwen2", [](config& c) { c.output_bias = true; }) == "model.layers.0.self_attn.o_proj.bias");
    CHECK(fit("qwen2", [](config& c) { c.layers = 3; }) == "model.layers.2.input_layernorm.weight");
    CHECK(fit("qwen2", [](config& c) { c.layers = 1; }) == "model.layers.1.input_layernorm.weight");
    CHECK(fit("qwen2", [](config& c) { c.vocabulary = 210; }) == "model.embed_tokens.weight.shape");
    CHECK(fit("qwen2", [](config& c) { c.tied_head = false; }) == "lm_head.weight");
    CHECK(fit("llama", [](config& c) { c.tied_head = true; }) ==
          "lm_head.weight"); // its bytes differ from the embedding's
    CHECK(fit("qwen3", [](config& c) { c.qk_norm = kv::head_norm::none; }) == "model.layers.0.self_attn.k_norm.weight");
    CHECK(fit("llama-gqa-tied", [](config& c) { c.kv_heads = 4; }) == "model.layers.0.self_attn.k_proj.weight.shape");
}

TEST_CASE("a real checkpoint opens and fits its configuration") {
    const auto directory = test_folders::data() / "models/stories260k";
    if (!testing_files::has_test_data(directory))
        return;
    const auto config = kv::read_model_config(directory);
    REQUIRE(config);
    CHECK(config->head_dim == 8);
    CHECK(config->kv_heads == 4);
    CHECK(config->tied_head);
    CHECK(kv::checkpoint::open(directory)->holds(*config));
}

TEST_CASE("a golden checkpoint damaged anywhere in its header is refused or gives the stored values") {
    const std::uint32_t seed = 20260419;
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto original = kv::mapped_file::open(goldens / "qwen2-untied" / "model.safetensors");
    REQUIRE(original);
    const std::string bytes(reinterpret_cast<const char*>(original->bytes().data()), original->bytes().size());
    const auto header = kv::safetensors_header::parse(original->bytes(), "x");
    REQUIRE(header);
    const auto config = *kv::read_model_config(goldens / "qwen2-untied");

    const temporary_directory directory;
    std::size_t fit = 0;
    for (int round = 0; round != 300; ++round) {
        std::string damaged = bytes;
        damaged[random() % header->buffer] = static_cast<char>(random());
        if (random() % 4 == 0)
            damaged.resize(random() % damaged.size());
        directory.write("model.safetensors", damaged);
        const auto opened = kv::checkpoint::open(directory.path());
        if (opened && opened->holds(config))
            ++fit; // a flip to the same byte, or inside __metadata__
        if (opened)
            CHECK(opened->digest());
    }
    CHECK(fit < 60);
}
