// SPDX-License-Identifier: MIT
// Directories of multimodal models, of which the text model is read; and experts that are stacked in one tensor.
#include <kvcache/formats/json.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/model/load.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>

namespace kv = kvcache;

namespace {

const std::filesystem::path goldens = test_folders::project() / "tests/data/checkpoints";

std::string read(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// The tensors of a checkpoint: entries of the header, and their bytes.
struct tensors {
    kv::json header;
    std::string buffer;

    static tensors of(const char* name) {
        const std::string file = read(goldens / name / "model.safetensors");
        std::uint64_t length = 0;
        std::memcpy(&length, file.data(), sizeof length);
        tensors made{kv::json::parse(file.substr(8, length)), file.substr(8 + length)};
        made.header.erase("__metadata__");
        return made;
    }
    void add(const std::string& name, const kv::json& shape, const std::string& type, const std::string& bytes) {
        header[name] = {
            {"dtype", type}, {"shape", shape}, {"data_offsets", {buffer.size(), buffer.size() + bytes.size()}}};
        buffer += bytes;
    }
    [[nodiscard]] std::string file() const { return testing_files::safetensors(header.dump(), buffer); }
};

// The same under other names.
template <class Name>
tensors renamed(const tensors& of, Name name) {
    tensors made{kv::json::object(), of.buffer};
    for (const auto& item : of.header.get_ref<const kv::json::object_t&>())
        made.header[name(item.first)] = item.second;
    return made;
}

std::vector<float> logits(const std::filesystem::path& directory) {
    const auto loaded = kv::load_model(directory);
    INFO((loaded ? std::string() : loaded.error().message));
    REQUIRE(loaded);
    auto cache =
        kv::make_cache({.limit = {.bytes = 32u << 20}}, kv::layers::grouped{.layout = loaded->model.layout(16)});
    kv::thread_pool threads(1);
    kv::pipeline pipeline(cache, loaded->model, threads);
    std::vector<kv::token_id> prompt;
    for (std::int32_t i = 0; i < 40; ++i)
        prompt.push_back(kv::token_id{i * 7 % 60});
    const auto made = pipeline.prefill(prompt, kv::logits_mode::all);
    REQUIRE(made);
    return {made->logits.data(), made->logits.data() + made->logits.size()};
}

std::string after(const std::string& name, std::size_t letters) {
    return name.substr(letters);
}

} // namespace

TEST_CASE("the text model of a multimodal directory is read, whatever the prefix of its tensors") {
    for (const char* name : {"qwen35", "qwen35-even", "gemma3"}) {
        CAPTURE(name);
        const auto want = logits(goldens / name);
        const tensors plain = tensors::of(name);
        kv::json text = kv::json::parse(read(goldens / name / "config.json"));
        text.erase("architectures");
        const kv::json tied = text.value("tie_word_embeddings", kv::json());
        if (text.contains("rope_parameters") && text["model_type"] == "qwen3_5_text") {
            text["rope_parameters"]["mrope_interleaved"] = true;
            text["rope_parameters"]["mrope_section"] = {1, 1, 0};
        }
        kv::json whole{{"model_type", "some_model"}, {"architectures", {"SomeModelForConditionalGeneration"}}};
        if (!tied.is_null())
            whole["tie_word_embeddings"] = tied, text.erase("tie_word_embeddings");
        whole["text_config"] = text;
        whole["vision_config"] = {{"depth", 2}};

        tensors inner = renamed(plain, [](const std::string& of) {
            return of.starts_with("model.") ? "model.language_model." + after(of, 6) : of;
        });
        inner.add("model.visual.blocks.0.norm1.weight", {2}, "F32", std::string(8, '\0'));
        inner.add("mtp.fc.weight", {1, 2}, "F32", std::string(8, '\0'));
        tensors outer = renamed(plain, [](const std::string& of) { return "language_model." + of; });
        outer.add("vision_tower.embeddings.weight", {2}, "F32", std::string(8, '\0'));
        for (const tensors* form : {&inner, &outer}) {
            const testing_files::temporary_directory directory;
            directory.write("config.json", whole.dump());
            directory.write("model.safetensors", form->file());
            CHECK(logits(directory.path()) == want);
        }
        tensors unknown = inner;
        unknown.add("model.other.weight", {2}, "F32", std::string(8, '\0'));
        const testing_files::temporary_directory directory;
        directory.write("config.json", whole.dump());
        directory.write("model.safetensors", unknown.file());
        const auto refused = kv::load_model(directory.path());
        REQUIRE_FALSE(refused);
        CHECK(refused.error().field == "model.other.weight");
    }
}

TEST_CASE("experts that are stacked in one tensor are those of tensors of their own") {
    const tensors plain = tensors::of("qwen35moe");
    const auto bytes_of = [&](const std::string& name) {
        const kv::json& at = plain.header[name]["data_offsets"];
        return plain.buffer.substr(at[0].get<std::size_t>(), at[1].get<std::size_t>() - at[0].get<std::size_t>());
    };
    tensors stacked{kv::json::object(), {}};
    for (const auto& item : plain.header.get_ref<const kv::json::object_t&>())
        if (item.first.find(".experts.") == std::string::npos)
            stacked.add(item.first, item.second["shape"], item.second["dtype"], bytes_of(item.first));
    for (const int layer : {0, 1}) {
        const std::string at = "model.layers." + std::to_string(layer) + ".mlp.experts.";
        std::string gate_up, down;
        for (int expert = 0; expert < 6; ++expert) {
            const std::string of = at + std::to_string(expert);
            gate_up += bytes_of(of + ".gate_proj.weight") + bytes_of(of + ".up_proj.weight");
            down += bytes_of(of + ".down_proj.weight");
        }
        stacked.add(at + "gate_up_proj", {6, 48, 32}, "BF16", gate_up);
        stacked.add(at + "down_proj", {6, 32, 24}, "BF16", down);
    }
    const testing_files::temporary_directory directory;
    directory.write("config.json", read(goldens / "qwen35moe" / "config.json"));
    directory.write("model.safetensors", stacked.file());
    CHECK(logits(directory.path()) == logits(goldens / "qwen35moe"));
}

TEST_CASE("experts of a directory in MXFP4 are the numbers that they stand for, bit for bit") {
    const tensors golden = tensors::of("gpt-oss");
    kv::json config = kv::json::parse(read(goldens / "gpt-oss" / "config.json"));
    constexpr std::size_t experts = 6, hidden = 32, size = 64;
    config["intermediate_size"] = size; // whole blocks
    tensors numbers{kv::json::object(), {}}, blocks = numbers;
    for (const auto& item : golden.header.get_ref<const kv::json::object_t&>())
        if (item.first.find(".experts.") == item.first.npos)
            for (tensors* each : {&blocks, &numbers}) {
                const std::size_t begin = item.second["data_offsets"][0], end = item.second["data_offsets"][1];
                each->add(item.first, item.second["shape"], item.second["dtype"],
                          golden.buffer.substr(begin, end - begin));
            }
    std::mt19937 random(3);
    const auto stack = [&](const std::string& name, std::size_t rows, std::size_t columns) {
        // A row is of an output in MXFP4, and of an input otherwise.
        std::string packed, scales, plain(experts * rows * columns * 2, '\0'), biases;
        for (std::size_t row = 0; row < experts * rows; ++row)
            for (std::size_t column = 0; column < columns; ++column) {
                if (column % 32 == 0)
                    scales += static_cast<char>(120 + random() % 5);
                constexpr float values[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
                const std::uint32_t code = random() % 16;
                if (column % 2 == 0)
                    packed += static_cast<char>(code);
                else
                    packed.back() = static_cast<char>(static_cast<unsigned char>(packed.back()) | code << 4);
                const float value = (code < 8 ? 1.0F : -1.0F) *
                                    std::ldexp(values[code % 8], static_cast<unsigned char>(scales.back()) - 127);
                std::uint32_t bits = 0; // of which BF16 has all that are set
                std::memcpy(&bits, &value, sizeof bits);
                const std::size_t at = ((row / rows * columns + column) * rows + row % rows) * 2;
                plain[at] = static_cast<char>(bits >> 16);
                plain[at + 1] = static_cast<char>(bits >> 24);
            }
        for (std::size_t i = 0; i < experts * rows; ++i)
            biases += std::string("\0\x3e", 2); // 0.125
        blocks.add(name + "_blocks", {experts, rows, columns / 32, 16}, "U8", packed);
        blocks.add(name + "_scales", {experts, rows, columns / 32}, "U8", scales);
        numbers.add(name, {experts, columns, rows}, "BF16", plain);
        for (tensors* each : {&blocks, &numbers})
            each->add(name + "_bias", {experts, rows}, "BF16", biases);
    };
    for (int layer = 0; layer < 4; ++layer) {
        const std::string at = "model.layers." + std::to_string(layer) + ".mlp.experts.";
        stack(at + "gate_up_proj", 2 * size, hidden);
        stack(at + "down_proj", hidden, size);
    }
    const testing_files::temporary_directory plain, mxfp4;
    plain.write("config.json", config.dump());
    plain.write("model.safetensors", numbers.file());
    config["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"model.embed_tokens"}}};
    mxfp4.write("config.json", config.dump());
    mxfp4.write("model.safetensors", blocks.file());
    CHECK(logits(mxfp4.path()) == logits(plain.path()));

    // What does not fit is refused by its name.
    const std::string first = "model.layers.0.mlp.experts.gate_up_proj";
    const auto refused = [&](const tensors& changed) {
        mxfp4.write("model.safetensors", changed.file());
        const auto loaded = kv::load_model(mxfp4.path());
        return loaded ? std::string() : loaded.error().field;
    };
    CHECK(refused(renamed(blocks, [&](const std::string& of) { return of == first + "_scales" ? "other" : of; })) ==
          first + "_scales");
    for (const char* suffix : {"_scales", "_blocks"}) {
        tensors other = blocks;
        other.header[first + suffix]["dtype"] = "I8";
        CHECK(refused(other) == first + suffix);
        other = blocks;
        auto& shape = other.header[first + suffix]["shape"];
        shape[0] = shape[0].get<std::size_t>() / 2;
        shape[1] = shape[1].get<std::size_t>() * 2;
        CHECK(refused(other) == first + suffix);
    }
    config["intermediate_size"] = 48;
    mxfp4.write("config.json", config.dump());
    CHECK(refused(blocks).find(first) == 0);
    config["quantization_config"]["quant_method"] = "gptq";
    mxfp4.write("config.json", config.dump());
    CHECK(refused(blocks) == "quantization_config");
}
