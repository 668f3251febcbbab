// SPDX-License-Identifier: MIT
#include <kvcache/kvcache.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/checkpoint.hpp>
#include <kvcache/model/huggingface/config.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory_resource>
#include <string>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>

namespace kv = kvcache;
namespace fs = std::filesystem;

namespace {

const fs::path goldens = test_folders::project() / "tests" / "data" / "checkpoints";

/// A copy of a golden model's directory, to be modified.
class copied {
public:
    explicit copied(const char* name) {
        for (const auto& entry : fs::directory_iterator(goldens / name))
            fs::copy_file(entry.path(), directory.path() / entry.path().filename());
    }

    [[nodiscard]] fs::path path() const { return directory.path(); }
    [[nodiscard]] fs::path packed() const { return kv::packed_path(path()); }

    /// Flips a byte at an offset from the end.
    void flip(const fs::path& file, std::size_t from_end) const {
        std::fstream both(file, std::ios::in | std::ios::out | std::ios::binary);
        both.seekg(-static_cast<std::streamoff>(from_end), std::ios::end);
        const auto at = both.tellg();
        const char byte = static_cast<char>(both.get());
        both.seekp(at);
        both.put(static_cast<char>(byte ^ 1));
        REQUIRE(both.flush());
    }

    testing_files::temporary_directory directory;
};

std::vector<float> logits(const kv::transformer& model) {
    auto cache = kv::make_cache({model.shape(16), {.bytes = 64u << 20}});
    kv::thread_pool threads(1);
    kv::pipeline pipeline(cache, model, threads, 32);
    std::vector<kv::token_id> prompt;
    for (std::int32_t i = 0; i < 20; ++i)
        prompt.push_back(kv::token_id{i});
    const auto filled = pipeline.prefill(prompt, kv::logits_mode::all);
    REQUIRE(filled);
    return {filled->logits.data(), filled->logits.data() + filled->logits.size()};
}

kv::loaded_model load(const fs::path& directory, const kv::load_options& options) {
    auto loaded = kv::load_model(directory, options);
    INFO((loaded ? std::string() : loaded.error().message));
    REQUIRE(loaded);
    return *std::move(loaded);
}

std::string refusal(const kv::loaded_model& loaded) {
    return loaded.report.refused ? loaded.report.refused->field : "";
}

} // namespace

TEST_CASE("kept weights give the model that packing them again gives, bit for bit") {
    for (const char* name : {"llama", "llama-gqa-tied", "llama-biases", "qwen3", "qwen2-untied", "smollm2"}) {
        INFO(name);
        const copied model(name);
        const auto plain = load(model.path(), {});
        CHECK_FALSE(plain.report.kept);
        CHECK_FALSE(fs::exists(model.packed()));
        const auto first = load(model.path(), {.threads = 2, .packed = model.packed()});
        CHECK(first.report.kept);
        CHECK_FALSE(first.report.reused);
        CHECK(refusal(first).empty());
        for (const bool trust : {true, false})
            for (const bool check : {true, false}) {
                const auto second =
                    load(model.path(), {.packed = model.packed(), .check_payload = check, .trust_description = trust});
                CHECK(second.report.reused);
                CHECK_FALSE(second.report.kept);
                CHECK(second.weights == plain.weights);
                CHECK(second.model.id(second.weights) == plain.model.id(plain.weights));
                CHECK(logits(second.model) == logits(plain.model));
            }
        CHECK(plain.weights == *kv::checkpoint::open(model.path())->digest());
    }
}

TEST_CASE("a tied checkpoint may store its one matrix under the name of the head") {
    const copied model("llama-gqa-tied");
    const auto before = load(model.path(), {});
    const auto file = kv::mapped_file::open(model.path() / "model.safetensors");
    REQUIRE(file);
    const std::string bytes(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
    const auto parsed = kv::safetensors_header::parse(file->bytes(), "x");
    REQUIRE(parsed);
    std::string header = bytes.substr(8, parsed->buffer - 8);
    const std::string name = "model.embed_tokens.weight";
    const auto at = header.find('"' + name + '"');
    REQUIRE(at != header.npos);
    header.replace(at + 1, name.size(), "lm_head.weight");
    model.directory.write("model.safetensors", testing_files::safetensors(header, bytes.substr(parsed->buffer)));

    const auto loaded = load(model.path(), {.packed = model.packed()});
    CHECK(logits(loaded.model) == logits(before.model));
    CHECK(loaded.weights != before.weights); // the digest covers the names
    CHECK(loaded.weights == *kv::checkpoint::open(model.path())->digest());
    const auto again = load(model.path(), {.packed = model.packed(), .trust_description = false});
    CHECK(again.report.reused);
    CHECK(logits(again.model) == logits(before.model));

    auto config = *kv::read_model_config(model.path());
    config.tied_head = false;
    const auto fits = kv::checkpoint::open(model.path())->holds(config);
    REQUIRE_FALSE(fits);
    CHECK(fits.error().code == kv::error_code::not_found);
    CHECK(fits.error().field == name);
    config.tied_head = true;
    ++config.vocabulary;
    CHECK(kv::checkpoint::open(model.path())->holds(config).error().field == "lm_head.weight.shape");
}

TEST_CASE("kept weights that are not the directory's are named, packed again and replaced") {
    const copied model("llama-gqa-tied");
    const kv::load_options keep{.packed = model.packed()};
    const auto before = load(model.path(), keep);
    const auto again = [&](const std::string& field) {
        const auto loaded = load(model.path(), keep);
        CHECK(refusal(loaded) == field);
        CHECK(loaded.report.kept == !field.empty());
        CHECK(loaded.report.reused == field.empty());
        CHECK(logits(loaded.model) == logits(load(model.path(), {}).model));
        return loaded.weights;
    };
    again("");
    model.flip(model.path() / "model.safetensors", 2); // a weight; the file size stays the same
    CHECK(again("weights") != before.weights);
    again("");

    model.flip(model.packed(), 1);
    again("payload");
    again("");
    model.flip(model.packed(), fs::file_size(model.packed()) - 100);
    again("header");
    fs::resize_file(model.packed(), fs::file_size(model.packed()) - 1);
    again("payload");
    model.directory.write(model.packed().filename().string(), "no packed weights");
    again("header");

    std::ifstream in(model.path() / "config.json");
    std::string config{std::istreambuf_iterator<char>(in), {}};
    const auto at = config.find("\"rms_norm_eps\": ");
    REQUIRE(at != config.npos);
    config.replace(at, config.find_first_of(",\n}", at) - at, "\"rms_norm_eps\": 0.25");
    model.directory.write("config.json", config);
    again("config");
    again("");
}

TEST_CASE("weights that cannot be kept are no reason not to run") {
    const copied model("llama-gqa-tied");
    const auto loaded = load(model.path(), {.packed = model.path() / "nowhere" / "packed"});
    CHECK_FALSE(loaded.report.kept);
    REQUIRE(loaded.report.not_kept);
    CHECK(loaded.report.not_kept->code == kv::error_code::io);
    CHECK_FALSE(loaded.report.refused);
}

TEST_CASE("files that were changed just now are described by nothing, older ones by what changes with them") {
    using namespace std::chrono_literals;
    const copied model("llama-gqa-tied");
    const auto now = std::chrono::system_clock::now();
    CHECK_FALSE(kv::checkpoint::open(model.path())->description(now));
    const auto later = kv::checkpoint::open(model.path())->description(now + 1h);
    REQUIRE(later);
    CHECK(later == kv::checkpoint::open(model.path())->description(now + 2h));
    fs::last_write_time(model.path() / "model.safetensors", fs::file_time_type::clock::now() - 24h);
    CHECK(later != kv::checkpoint::open(model.path())->description(now + 1h));
}

TEST_CASE("progress is reported after each layer, and only where weights are packed") {
    const copied model("llama-gqa-tied");
    std::vector<std::size_t> told;
    const auto progress = [&](std::size_t done, std::size_t of) {
        CHECK(done <= of);
        told.push_back(done);
    };
    const kv::load_options keep{.packed = model.packed()};
    const auto first = kv::load_model(model.path(), keep, progress);
    REQUIRE(first);
    REQUIRE(told.size() == first->model.layers().size());
    CHECK(std::ranges::is_sorted(told));
    CHECK(told.back() == told.size());
    told.clear();
    CHECK(kv::load_model(model.path(), keep, progress));
    CHECK(told.empty());
    CHECK(kv::load_model(model.path(), progress));
    CHECK(told.size() == first->model.layers().size());
}

namespace {

/// Counts the allocated bytes, now and at most, and allocates no more than `most`.
class counting_resource : public std::pmr::memory_resource {
public:
    explicit counting_resource(std::size_t most) : most_(most) {}
    std::size_t out = 0, peak = 0, blocks = 0;

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (bytes > most_ - out)
            throw std::bad_alloc();
        ++blocks;
        peak = std::max(peak, out += bytes);
        return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        out -= bytes;
        std::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

    std::size_t most_;
};

/// Resident bytes of `file` in this process; 0 if the system does not report them.
std::size_t resident(const fs::path& file) {
    std::ifstream mappings("/proc/self/smaps");
    std::size_t kilobytes = 0;
    bool inside = false;
    for (std::string line; std::getline(mappings, line);)
        if (line.find(" kB") == line.npos)
            inside = line.ends_with(file.string());
        else if (inside && line.starts_with("Rss:"))
            kilobytes += std::stoul(line.substr(line.find_first_of("0123456789")));
    return kilobytes * 1024;
}

} // namespace

TEST_CASE("a load takes one block for its weights, which goes with the model") {
    const copied model("llama-gqa-tied");
    const auto config = *kv::read_model_config(model.path());
    const auto layout = *kv::weight_layout::plan(kv::weight_groups(config), *kv::checkpoint::open(model.path()));
    counting_resource enough(layout.bytes()), too_little(layout.bytes() - 1);
    {
        const auto loaded = load(model.path(), {.memory = &enough});
        CHECK(enough.blocks == 1);
        CHECK(enough.peak == layout.bytes());
    }
    CHECK(enough.out == 0);
    const auto refused = kv::load_model(model.path(), {.memory = &too_little});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::out_of_memory);
}

TEST_CASE("a tensor that has been packed does not stay in memory twice") {
    // A model whose file is large compared with a layer: 24 layers, 8 MiB.
    const testing_files::temporary_directory directory;
    directory.write("config.json", R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":128,
        "intermediate_size":64,"num_hidden_layers":24,"num_attention_heads":2,"num_key_value_heads":2,"head_dim":64,
        "vocab_size":64,"max_position_embeddings":64,"tie_word_embeddings":true})");
    const auto config = kv::read_model_config(directory.path());
    REQUIRE(config);
    std::string header = "{", buffer;
    for (const kv::weight_name& weight : kv::weights_of(*config)) {
        std::size_t size = 4;
        std::string shape;
        for (const std::size_t extent : weight.shape) {
            size *= extent;
            shape += (shape.empty() ? "" : ",") + std::to_string(extent);
        }
        header += (buffer.empty() ? "\"" : ",\"") + weight.name + R"(":{"dtype":"F32","shape":[)" + shape +
                  R"(],"data_offsets":[)" + std::to_string(buffer.size()) + "," + std::to_string(buffer.size() + size) +
                  "]}";
        buffer.append(size, '\1');
    }
    directory.write("model.safetensors", testing_files::safetensors(header + "}", buffer));
    const fs::path file = directory.path() / "model.safetensors";
    std::size_t most = 0;
    REQUIRE(kv::load_model(directory.path(), kv::load_options{.threads = 1},
                           [&](std::size_t, std::size_t) { most = std::max(most, resident(file)); }));
    INFO(most << " of " << buffer.size() << " bytes");
    CHECK(most < buffer.size() / 2);
    CHECK(resident(file) == 0);
}
