// SPDX-License-Identifier: MIT
#include <kvcache/kvcache.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/gguf/config.hpp>
#include <kvcache/model/load.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <model/gguf/files.hpp>
#include <model/huggingface/files.hpp>
#include <support/gguf_builder.hpp>

namespace kv = kvcache;
namespace fs = std::filesystem;
using testing_files::gguf_builder;
using testing_files::gguf_data;
using testing_files::gguf_of;
using testing_files::golden_checkpoints;
using testing_files::temporary_directory;

namespace {

std::vector<float> logits(const kv::transformer& model) {
    auto cache = kv::make_cache({.limit = {.bytes = 64u << 20}}, kv::layers::grouped{.layout = model.layout(16)});
    kv::thread_pool threads(1);
    kv::pipeline pipeline(cache, model, threads, 32);
    std::vector<kv::token_id> prompt;
    for (std::int32_t i = 0; i < 40; ++i)
        prompt.push_back(kv::token_id{i * 7 % 60});
    const auto filled = pipeline.prefill(prompt, kv::logits_mode::all);
    REQUIRE(filled);
    return {filled->logits.data(), filled->logits.data() + filled->logits.size()};
}

/// Counts the bytes that are taken at once.
class counting_memory : public std::pmr::memory_resource {
public:
    std::size_t most = 0;

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        held_ += bytes;
        most = std::max(most, held_);
        return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        held_ -= bytes;
        std::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }

    std::size_t held_ = 0;
};

/// Loads a file of this content.
kv::result<kv::loaded_model> load(const gguf_builder& built) {
    const temporary_directory directory;
    directory.write("model.gguf", built.file());
    return kv::load_model(directory.path() / "model.gguf");
}
/// The field of the error, or "".
std::string refused(const gguf_builder& built) {
    const auto loaded = load(built);
    if (loaded)
        return "";
    CHECK(loaded.error().message.starts_with("model.gguf: " + loaded.error().field));
    return loaded.error().field;
}

/// Rows in Q8_0: the scale is the largest magnitude over 127.
gguf_data in_q8_0(const std::string&, const kv::tensor_view& view) {
    if (view.shape[1] % 32 != 0)
        return testing_files::as_it_is(view);
    std::vector<float> numbers(view.size());
    view.read(0, numbers);
    std::string bytes;
    for (std::size_t begin = 0; begin < numbers.size(); begin += 32) {
        const auto block = std::span(numbers).subspan(begin, 32);
        float largest = 0.0F;
        for (const float x : block)
            largest = std::max(largest, std::abs(x));
        const kv::half scale = kv::to_half(largest / 127.0F);
        bytes += gguf_builder::encoded(scale.bits);
        for (const float x : block)
            bytes += static_cast<char>(largest == 0.0F ? 0 : std::lround(x / kv::widen(scale) * 0.99F));
    }
    return {static_cast<std::uint32_t>(kv::block_format::q8_0), bytes};
}

/// The numbers of in_q8_0(), in F32.
gguf_data widened(const std::string& name, const kv::tensor_view& view) {
    const auto [type, bytes] = in_q8_0(name, view);
    if (type != static_cast<std::uint32_t>(kv::block_format::q8_0))
        return {type, bytes};
    std::vector<float> numbers(view.size());
    kv::dequantize(kv::block_format::q8_0, testing_files::bytes_of(bytes), numbers);
    std::string made;
    for (const float x : numbers)
        made += gguf_builder::encoded(x);
    return {0, made};
}

} // namespace

TEST_CASE("a GGUF file gives the model of the checkpoint that it was converted from, bit for bit") {
    for (const auto& entry : fs::directory_iterator(golden_checkpoints)) {
        if (!entry.is_directory())
            continue;
        INFO(entry.path().filename().string());
        const auto theirs = kv::load_model(entry.path());
        REQUIRE(theirs);
        if (!testing_files::has_gguf_form(theirs->model.config()))
            continue;
        const auto ours = load(gguf_of(entry.path()));
        INFO((ours ? std::string() : ours.error().message));
        REQUIRE(ours);
        const auto expected = logits(theirs->model), got = logits(ours->model);
        CHECK(ours->model.config().head_dim == theirs->model.config().head_dim);
        CHECK(ours->model.config().eos.size() == std::min<std::size_t>(theirs->model.config().eos.size(), 2));
        const bool factors = theirs->model.config().rope.scaling == kv::rope_config::kind::llama3;
        if (factors)
            CHECK(ours->model.config().rope.scaling == kv::rope_config::kind::factors);
        // The factors are rounded to float32; value heads in another order are summed in another order.
        const float within = factors ? 1e-4F : ours->model.config().recurrence.tiled ? 1e-5F : 0.0F;
        if (within == 0.0F)
            CHECK(got == expected);
        REQUIRE(got.size() == expected.size());
        for (std::size_t i = 0; i < got.size(); ++i)
            CHECK(std::abs(got[i] - expected[i]) <= within * std::max(1.0F, std::abs(expected[i])));
        if (ours->model.config().recurrence.joined_heads) {
            const auto split = load(gguf_of(entry.path(), {.split = true}));
            INFO((split ? std::string() : split.error().message));
            REQUIRE(split);
            CHECK_FALSE(split->model.config().recurrence.joined_heads);
            CHECK(logits(split->model) == expected);
        }
    }
}

TEST_CASE("blocks are the numbers that they widen to, bit for bit") {
    for (const char* name : {"tinyllama", "llama-gqa-tied", "qwen2"}) {
        INFO(name);
        const auto blocks = load(gguf_of(golden_checkpoints / name, in_q8_0));
        const auto numbers = load(gguf_of(golden_checkpoints / name, widened));
        REQUIRE(blocks);
        REQUIRE(numbers);
        CHECK(logits(blocks->model) == logits(numbers->model));
        CHECK(blocks->weights != numbers->weights);
    }
}

TEST_CASE("experts in MXFP4 are the numbers that they widen to, bit for bit") {
    // Any blocks of moderate scale, for the tensors whose rows are whole blocks.
    const auto in_mxfp4 = [](const std::string& name, const kv::tensor_view& view) -> gguf_data {
        if (name.find("_exps") == name.npos || view.shape[1] % 32 != 0)
            return testing_files::as_it_is(view);
        std::mt19937 random(static_cast<std::uint32_t>(view.shape[0]));
        std::string bytes;
        for (std::size_t block = 0; block < view.size() / 32; ++block) {
            bytes += static_cast<char>(120 + random() % 4);
            for (int i = 0; i < 16; ++i)
                bytes += static_cast<char>(random());
        }
        return {static_cast<std::uint32_t>(kv::block_format::mxfp4), bytes};
    };
    const auto as_numbers = [&](const std::string& name, const kv::tensor_view& view) -> gguf_data {
        const auto [type, bytes] = in_mxfp4(name, view);
        if (type != static_cast<std::uint32_t>(kv::block_format::mxfp4))
            return {type, bytes};
        std::vector<float> numbers(view.size());
        kv::dequantize(kv::block_format::mxfp4, testing_files::bytes_of(bytes), numbers);
        std::string made;
        for (const float x : numbers)
            made += gguf_builder::encoded(x);
        return {0, made};
    };
    const auto blocks = load(gguf_of(golden_checkpoints / "gpt-oss", in_mxfp4));
    const auto numbers = load(gguf_of(golden_checkpoints / "gpt-oss", as_numbers));
    REQUIRE(blocks);
    REQUIRE(numbers);
    CHECK(logits(blocks->model) == logits(numbers->model));
}

TEST_CASE("a view of interleaved blocks reads any part of any row") {
    const std::size_t rows = 12, width = 64, head = 6;
    std::string bytes;
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t block = 0; block < width / 32; ++block) {
            bytes += gguf_builder::encoded(kv::to_half(1.0F).bits);
            for (std::size_t i = 0; i < 32; ++i)
                bytes += static_cast<char>(row * 10 + block * 4 + i % 4);
        }
    const std::string stored = testing_files::interleaved(bytes, rows, head);
    const kv::tensor_view view{.shape = {rows, width},
                               .bytes = testing_files::bytes_of(stored),
                               .blocks = kv::block_format::q8_0,
                               .head_rows = head};
    std::vector<float> all(rows * width);
    kv::dequantize(kv::block_format::q8_0, testing_files::bytes_of(bytes), all);
    CHECK(view.size() == all.size());
    for (std::size_t row = 0; row < rows; ++row)
        CHECK(std::ranges::equal(view.row(row), testing_files::bytes_of(bytes).subspan(row * 68, 68)));
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        const std::size_t first = random() % all.size(), n = random() % (all.size() - first + 1);
        std::vector<float> part(n);
        view.read(first, part);
        CHECK(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(first)));
        CHECK(view[first] == all[first]);
    }
}

TEST_CASE("packed weights of a GGUF file are reused while it is unchanged") {
    const temporary_directory directory;
    const auto path = directory.path() / "model.gguf";
    directory.write("model.gguf", gguf_of(golden_checkpoints / "llama-gqa-tied").file());
    CHECK(kv::packed_path(path) == directory.path() / "model.gguf.kvcache-packed");
    const kv::load_options keep{.packed = kv::packed_path(path)};
    const auto first = kv::load_model(path, keep);
    REQUIRE(first);
    CHECK(first->report.kept);
    const auto second = kv::load_model(path, keep);
    REQUIRE(second);
    CHECK(second->report.reused);
    CHECK(second->weights == first->weights);
    CHECK(logits(second->model) == logits(first->model));

    directory.write("model.gguf", gguf_of(golden_checkpoints / "llama-gqa-tied", widened).file());
    const auto third = kv::load_model(path, keep);
    REQUIRE(third);
    CHECK_FALSE(third->report.reused);
    CHECK(third->weights != first->weights);
}

TEST_CASE("a split GGUF model is the model in one file") {
    const auto golden = golden_checkpoints / "qwen3";
    const auto config = *kv::read_model_config(golden);
    const auto weights = *kv::checkpoint::open(golden);
    const auto names = kv::weights_of(config);
    const auto parts = [&](std::size_t count) {
        std::vector<gguf_builder> made(count);
        testing_files::describe(made[0], config);
        for (std::size_t i = 0; i < count; ++i) {
            made[i].number("split.no", static_cast<std::uint16_t>(i));
            made[i].number("split.count", static_cast<std::uint16_t>(count));
            made[i].number("split.tensors.count", static_cast<std::int32_t>(names.size()));
        }
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto [type, bytes] = testing_files::as_it_is(*weights.tensor(names[i].name, names[i].shape));
            made[i % count].tensor(kv::gguf_name(kv::architecture_of(config), names[i].name), names[i].shape, type,
                                   bytes);
        }
        return made;
    };
    const auto name = [](int i) { return "m-0000" + std::to_string(i) + "-of-00003.gguf"; };
    const temporary_directory directory;
    auto three = parts(3);
    for (int i = 0; i < 3; ++i)
        directory.write(name(i + 1), three[static_cast<std::size_t>(i)].file());
    const auto split = kv::load_model(directory.path() / name(1));
    const auto whole = load(gguf_of(golden));
    INFO((split ? std::string() : split.error().message));
    REQUIRE(split);
    REQUIRE(whole);
    CHECK(split->weights == whole->weights);
    CHECK(logits(split->model) == logits(whole->model));

    const auto field = [&](const std::string& file) {
        const auto opened = kv::gguf_checkpoint::open(directory.path() / file);
        return opened ? std::string() : opened.error().field;
    };
    CHECK(field(name(2)) == "split.no");
    directory.write("renamed.gguf", three[0].file());
    CHECK(field("renamed.gguf") == "split.no");
    directory.write(name(3), three[1].file());
    CHECK(field(name(1)) == "split.no");
    three[2].describe("token_embd.weight", {1}, 0, 0);
    directory.write(name(3), three[2].file());
    CHECK(field(name(1)) == "token_embd.weight");
    fs::remove(directory.path() / name(3));
    CHECK(field(name(1)) == name(3));
    auto more = parts(3);
    more[2].tensor("extra", {1}, 0, "0000");
    directory.write(name(3), more[2].file());
    CHECK(field(name(1)) == "split.tensors.count");
}

TEST_CASE("tensors that do not fit a GGUF file are refused by name") {
    const auto entries = [](const gguf_builder& built) {
        const std::string file = built.file();
        const std::vector<char> exact(file.begin(), file.end());
        const auto bytes = testing_files::bytes_of({exact.data(), exact.size()});
        const auto header = kv::gguf_header::parse(bytes, "x.gguf");
        REQUIRE(header);
        const auto all = kv::gguf_file::entries(*header, bytes, "x.gguf");
        return all ? std::string() : all.error().field;
    };
    CHECK(entries(gguf_builder().tensor("a", {2, 32}, 8, std::string(68, '\0'))).empty());
    CHECK(entries(gguf_builder().tensor("a", {2, 16}, 8, std::string(34, '\0'))) == "a");
    CHECK(entries(gguf_builder().tensor("a", {4}, 9, std::string(64, '\0'))) == "a");
    CHECK(entries(gguf_builder().tensor("a", {4}, 0, std::string(15, '\0'))) == "a");
    CHECK(entries(gguf_builder().describe("a", {4}, 0, ~std::uint64_t{31})) == "a");
    CHECK(entries(gguf_builder().describe("a", {std::size_t{1} << 28, std::size_t{1} << 28}, 0, 0)) == "a");
    gguf_builder overlapping;
    overlapping.tensor("a", {16}, 0, std::string(64, '\0')).describe("b", {4}, 0, 32);
    CHECK(entries(overlapping) == "b");

    gguf_builder extra = gguf_of(golden_checkpoints / "qwen3");
    extra.tensor("blk.0.attn_q.bias", {96}, 0, std::string(384, '\0'));
    CHECK(refused(extra) == "blk.0.attn_k.bias");
    CHECK(refused(gguf_of(golden_checkpoints / "qwen3", [](const std::string& name, const kv::tensor_view& view) {
              auto data = testing_files::as_it_is(view);
              if (name == "blk.1.ffn_up.weight")
                  data.second.resize(data.second.size() / 2);
              return data;
          })) == "blk.1.ffn_down.weight"); // which follows the tensor that is cut
}

namespace {

// Files of a golden checkpoint with changed bytes are refused by name or loaded, in memory that their size bounds.
void change_bytes(const char* name, std::uint32_t seed, int rounds) {
    CAPTURE(name, seed);
    std::mt19937 random(seed);
    const std::string file = gguf_of(golden_checkpoints / name, in_q8_0).file();
    const auto header = kv::gguf_header::parse(testing_files::bytes_of(file), "x");
    REQUIRE(header);
    int loaded = 0;
    counting_memory memory;
    for (int round = 0; round < rounds; ++round) {
        std::string changed = file;
        for (std::uint32_t i = 0, n = 1 + static_cast<std::uint32_t>(random() % 3); i < n; ++i)
            changed[random() % header->data()] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
        if (random() % 8 == 0)
            changed.resize(random() % changed.size());
        const temporary_directory directory;
        directory.write("model.gguf", changed);
        const auto model =
            kv::load_model(directory.path() / "model.gguf", kv::load_options{.threads = 1, .memory = &memory});
        CHECK(memory.most <= 4 * file.size());
        loaded += model ? 1 : 0;
        if (!model) {
            CHECK_FALSE(model.error().field.empty());
            CHECK_FALSE(model.error().message.empty());
        }
    }
    CHECK(loaded < rounds);
}

constexpr const char* one_of_each[] = {"qwen2",         "qwen3",   "gemma",         "gemma2-plain",
                                       "gemma3",        "granite", "olmo2",         "phi3-partial",
                                       "smollm3",       "mixtral", "qwen3moe",      "lfm2-older",
                                       "qwen35-even",   "gpt-oss", "qwen35moe",     "qwen3next",
                                       "granitehybrid", "gemma4",  "gemma4-values", "granitehybrid-experts"};

} // namespace

TEST_CASE("a GGUF model with changed bytes is refused or loaded, in memory that its size bounds") {
    change_bytes("llama-gqa-tied", 31, 1000);
    for (const char* name : one_of_each)
        change_bytes(name, 32, 60);
}

TEST_CASE("many GGUF models of each architecture with changed bytes are refused or loaded", "[.long]") {
    for (const char* name : one_of_each)
        change_bytes(name, 33, 1000);
}

TEST_CASE("a path that is no model is refused as what it is named like") {
    const temporary_directory directory;
    CHECK(kv::load_model(directory.path() / "nothing.gguf").error().field == "nothing.gguf");
    CHECK(kv::load_model(directory.path() / "nothing").error().field == "config.json");
    directory.write("file", "no model");
    CHECK(kv::load_model(directory.path() / "file").error().field == "magic");
    fs::create_directory(directory.path() / "named.gguf");
    CHECK(kv::load_model(directory.path() / "named.gguf").error().field == "config.json");
}
