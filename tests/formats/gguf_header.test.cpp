// SPDX-License-Identifier: MIT
#include <kvcache/core/file.hpp>
#include <kvcache/formats/gguf.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>
#include <support/gguf_builder.hpp>

namespace kv = kvcache;
using testing_files::bytes_of;
using testing_files::gguf_builder;

namespace {

/// Touches all that a value says, nested arrays included, so that a sanitizer detects spans that are too long.
std::uint64_t read(const kv::gguf_value& value) {
    std::uint64_t sum = value.count().value_or(1);
    sum += value.number().value_or(0) > 0 ? 1 : 0;
    sum += value.flag().value_or(false) ? 1 : 0;
    if (const auto text = value.text())
        for (const char c : *text)
            sum += static_cast<unsigned char>(c);
    value.each([&](const kv::gguf_value& element) { sum += read(element); });
    return sum;
}

/// Parses a file with no slack after it. Returns the field of the error, or "".
std::string field_of(const std::string& file) {
    const std::vector<char> exact(file.begin(), file.end());
    const auto header = kv::gguf_header::parse(bytes_of({exact.data(), exact.size()}), "test.gguf");
    if (!header) {
        CHECK(header.error().message.starts_with("test.gguf: " + header.error().field));
        return header.error().field;
    }
    std::uint64_t sum = 0;
    for (const auto& [key, value] : header->metadata())
        sum += read(value) + key.size();
    for (const auto& tensor : header->tensors())
        sum += tensor.name.size();
    CHECK(header->data() <= file.size());
    return sum == ~std::uint64_t{0} ? "impossible" : "";
}

/// A file with every type of value, and two tensors.
gguf_builder everything() {
    gguf_builder made;
    made.text("general.architecture", "llama").number<std::uint8_t>("u8", 200).number<std::int8_t>("i8", -3);
    made.number<std::uint16_t>("u16", 60000).number<std::int16_t>("i16", -300);
    made.number<std::uint32_t>("u32", 4000000000).number<std::int32_t>("i32", -5).number("f32", 0.5F);
    made.number("bool", true).number<std::uint64_t>("u64", std::uint64_t{1} << 63).number<std::int64_t>("i64", -7);
    made.number("f64", 0.25).texts("words", {"a", "", "ccc"}).numbers<std::int32_t>("ids", {3, -1, 4});
    made.raw("nested", kv::gguf_type::array,
             gguf_builder::array_head(kv::gguf_type::array, 2) + gguf_builder::array_head(kv::gguf_type::u8, 3) +
                 "\1\2\3" + gguf_builder::array_head(kv::gguf_type::string, 1) + gguf_builder::encoded("x"));
    made.tensor("one", {2, 3}, 0, std::string(24, '\1')).tensor("two", {5}, 1, std::string(10, '\2'));
    return made;
}

} // namespace

TEST_CASE("a GGUF header gives every type of value, and the tensors outermost first") {
    for (const std::uint32_t version : {2u, 3u}) {
        gguf_builder built = everything();
        built.version = version;
        const std::string file = built.file();
        const auto header = kv::gguf_header::parse(bytes_of(file), "x");
        REQUIRE(header);
        CHECK(header->version() == version);
        CHECK(header->alignment() == 32);
        CHECK(header->data() == file.size() - 42);
        const auto at = [&](const char* key) { return *header->find(key); };
        CHECK(at("general.architecture").text() == "llama");
        CHECK(at("u8").count() == 200u);
        CHECK_FALSE(at("i8").count());
        CHECK(at("i8").number() == -3.0);
        CHECK(at("u16").count() == 60000u);
        CHECK(at("i16").number() == -300.0);
        CHECK(at("u32").count() == 4000000000u);
        CHECK(at("i32").number() == -5.0);
        CHECK(at("f32").number() == 0.5);
        CHECK_FALSE(at("f32").count());
        CHECK(at("bool").flag() == true);
        CHECK_FALSE(at("u8").flag());
        CHECK(at("u64").count() == std::uint64_t{1} << 63);
        CHECK(at("u64").number() == 9223372036854775808.0);
        CHECK(at("i64").number() == -7.0);
        CHECK(at("f64").number() == 0.25);
        CHECK(header->find("absent") == nullptr);

        std::vector<std::string> words;
        at("words").each([&](const kv::gguf_value& word) { words.emplace_back(*word.text()); });
        CHECK(words == std::vector<std::string>{"a", "", "ccc"});
        CHECK(at("ids").size() == 3);
        CHECK(at("ids").element() == kv::gguf_type::i32);
        std::vector<std::size_t> sizes;
        at("nested").each([&](const kv::gguf_value& inner) { sizes.push_back(inner.size()); });
        CHECK(sizes == std::vector<std::size_t>{3, 1});

        REQUIRE(header->tensors().size() == 2);
        CHECK(header->tensors()[0].name == "one");
        CHECK(header->tensors()[0].shape == std::vector<std::size_t>{2, 3});
        CHECK(header->tensors()[1].type == 1);
        CHECK(header->tensors()[1].offset == 32);
    }
}

TEST_CASE("a GGUF file of another version, byte order or magic is refused by name") {
    const std::string file = everything().file();
    const auto with = [&](std::size_t at, const std::string& bytes) {
        std::string changed = file;
        return changed.replace(at, bytes.size(), bytes);
    };
    CHECK(field_of(file).empty());
    CHECK(field_of("") == "magic");
    CHECK(field_of("GGU") == "magic");
    CHECK(field_of(with(0, "ggml")) == "magic");
    CHECK(field_of(with(4, std::string("\1\0\0\0", 4))) == "version");
    CHECK(field_of(with(4, std::string("\4\0\0\0", 4))) == "version");
    CHECK(
        kv::gguf_header::parse(bytes_of(with(4, std::string("\0\0\0\3", 4))), "x").error().message.find("big-endian") !=
        std::string::npos);
    CHECK(kv::gguf_header::begins(bytes_of(file)));
    CHECK_FALSE(kv::gguf_header::begins(bytes_of("GGM")));
}

TEST_CASE("a GGUF header that contradicts itself is refused with the key or the tensor") {
    using kv::gguf_type;
    const auto key = [](gguf_type type, const std::string& value) {
        return field_of(gguf_builder().raw("key", type, value).file());
    };
    const std::string huge = gguf_builder::encoded(~std::uint64_t{0});
    CHECK(key(static_cast<gguf_type>(13), "\1") == "key");
    CHECK(key(gguf_type::string, huge + "abc") == "key");
    CHECK(key(gguf_type::array, gguf_builder::array_head(gguf_type::u8, ~std::uint64_t{0})) == "key");
    CHECK(key(gguf_type::array, gguf_builder::array_head(gguf_type::f64, std::uint64_t{1} << 61)) == "key");
    CHECK(key(gguf_type::array, gguf_builder::array_head(gguf_type::string, 1u << 30)) == "key");
    CHECK(key(gguf_type::array, gguf_builder::array_head(static_cast<gguf_type>(99), 1) + "aaaa") == "key");
    std::string deep;
    for (int i = 0; i < 1000; ++i)
        deep += gguf_builder::array_head(gguf_type::array, 1);
    CHECK(key(gguf_type::array, deep + gguf_builder::array_head(gguf_type::u8, 0)) == "key");

    CHECK(field_of(gguf_builder().number("a", 1).number("a", 2).file()) == "a");
    CHECK(field_of(gguf_builder().number("general.alignment", 48u).file()) == "general.alignment");
    CHECK(field_of(gguf_builder().number("general.alignment", 0u).file()) == "general.alignment");
    CHECK(field_of(gguf_builder().text("general.alignment", "32").file()) == "general.alignment");

    const auto tensor = [](const std::vector<std::size_t>& shape, std::uint64_t offset) {
        return field_of(gguf_builder().describe("t", shape, 0, offset).file());
    };
    CHECK(tensor({4}, 0).empty());
    CHECK(tensor({}, 0) == "t");
    CHECK(tensor({1, 1, 1, 1, 1}, 0) == "t");
    CHECK(tensor({4, 0}, 0) == "t");
    CHECK(tensor({std::size_t{1} << 40, std::size_t{1} << 40}, 0) == "t");
    CHECK(tensor({4}, 16) == "t");
    CHECK(field_of(gguf_builder().describe("t", {4}, 0, 0).describe("t", {4}, 0, 0).file()) == "t");
    CHECK(field_of(gguf_builder().describe(std::string(65, 'n'), {4}, 0, 0).file()) == "tensor 0");
    CHECK(field_of(gguf_builder().raw(std::string(70000, 'k'), gguf_type::u8, "\1").file()) == "key 0");
    CHECK(field_of(gguf_builder().number("a", 1).number("", 1).file()) == "key 1");

    std::string counts = gguf_builder().file();
    counts.replace(8, 8, huge);
    CHECK(field_of(counts) == "tensor_count");
    counts = gguf_builder().file();
    counts.replace(16, 8, huge);
    CHECK(field_of(counts) == "metadata_kv_count");
    counts.replace(16, 8, gguf_builder::encoded(std::uint64_t{1000}));
    CHECK(field_of(counts) == "metadata_kv_count");
}

TEST_CASE("a GGUF header that is cut anywhere is refused") {
    const std::string file = everything().file();
    const std::size_t data = file.size() - 42;
    for (std::size_t size = 0; size < data; ++size) {
        INFO(size);
        CHECK_FALSE(field_of(file.substr(0, size)).empty());
    }
    CHECK(field_of(file.substr(0, data)).empty()); // the data is the business of who reads the tensors
}

TEST_CASE("a GGUF header with changed bytes is refused or read, never past its end") {
    const std::uint32_t seed = 20251125;
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const std::string file = everything().file();
    for (int round = 0; round < 1000; ++round) {
        std::string changed = file;
        for (std::uint32_t i = 0, n = 1 + random() % 4; i < n; ++i)
            changed[random() % changed.size()] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
        (void)field_of(changed);
    }
}

TEST_CASE("real GGUF vocabularies are read") {
    const std::filesystem::path folder = test_folders::data() / "gguf-vocab";
    for (const auto& [name, tokens] : {std::pair("gpt-2", 50257u), std::pair("phi-3", 32064u)}) {
        const auto path = folder / ("ggml-vocab-" + std::string(name) + ".gguf");
        if (!testing_files::has_test_data(path))
            return;
        const auto mapped = kv::mapped_file::open(path);
        REQUIRE(mapped);
        const auto header = kv::gguf_header::parse(mapped->bytes(), name);
        REQUIRE(header);
        CHECK(header->find("tokenizer.ggml.tokens")->size() == tokens);
        CHECK(header->data() == mapped->bytes().size());
    }
}
