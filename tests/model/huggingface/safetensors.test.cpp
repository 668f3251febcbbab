// SPDX-License-Identifier: MIT
#include <kvcache/model/huggingface/safetensors.hpp>

#include <array>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>

namespace kv = kvcache;
using testing_files::bytes_of;
using testing_files::safetensors;

namespace {

/// Parses the file and reads every byte of its entries, so that a sanitizer detects spans that are too long.
std::string field_of(const std::string& file) {
    const std::vector<char> exact(file.begin(), file.end()); // no slack after it
    const auto bytes = bytes_of({exact.data(), exact.size()});
    const auto header = kv::safetensors_header::parse(bytes, "test.safetensors");
    if (!header) {
        CHECK(header.error().message.starts_with("test.safetensors: "));
        return header.error().field;
    }
    unsigned sum = 0;
    for (const auto& [name, entry] : header->entries)
        for (const std::byte b : bytes.subspan(header->buffer + entry.begin, entry.end - entry.begin))
            sum += std::to_integer<unsigned>(b);
    return sum == ~0u ? "impossible" : "";
}

std::string field_of(const std::string& header, std::size_t buffer) {
    return field_of(safetensors(header, std::string(buffer, '\1')));
}

const std::string two_tensors = R"({"__metadata__":{"format":"pt"},)"
                                R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}}   )";

} // namespace

TEST_CASE("a well-formed safetensors header gives its tensors and metadata") {
    const std::string file = safetensors(two_tensors, std::string(26, '\0'));
    const auto header = kv::safetensors_header::parse(bytes_of(file), "x");
    REQUIRE(header);
    CHECK(header->buffer == file.size() - 26);
    CHECK(header->metadata.at("format") == "pt");
    REQUIRE(header->entries.size() == 2);
    CHECK(header->entries.at("a").shape == std::vector<std::size_t>{2, 3});
    CHECK(header->entries.at("b").dtype == "BF16");
    CHECK(header->entries.at("b").begin == 24);

    CHECK(field_of("{}", 0).empty());
    CHECK(field_of(R"({"z":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}})", 0).empty());
    CHECK(field_of(R"({"z":{"data_offsets":[0,3],"shape":[6],"dtype":"F4"}})", 3).empty());
    CHECK(field_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                   R"("a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},)"
                   R"("none":{"dtype":"I64","shape":[0],"data_offsets":[1,1]}})",
                   2)
              .empty());
}

TEST_CASE("a lying safetensors header is refused by the name of its field") {
    const auto tensor = [](const std::string& body) { return "{\"t\":" + body + "}"; };
    struct lie {
        std::string header;
        std::size_t buffer;
        std::string field;
    };
    const lie lies[] = {
        // JSON
        {"", 0, "header"},
        {" {}", 0, "header"},
        {"{}\n", 0, "header"},
        {"[]", 0, "header"},
        {"{}{}", 0, "JSON"},
        {"{\"t\"}", 0, "JSON"},
        {"{\"\xFF\":{}}", 0, "JSON"},
        {"{\"t\":{\"dtype\":\"F32\",}}", 0, "JSON"},
        {"{\"a\":NaN}", 0, "JSON"},
        {std::string(3, '{') + "}", 0, "JSON"},
        // types of values
        {tensor("1"), 0, "t"},
        {tensor("null"), 0, "t"},
        {tensor("[]"), 0, "t"},
        {tensor("\"x\""), 0, "t"},
        {tensor(R"({"dtype":1,"shape":[1],"data_offsets":[0,4]})"), 4, "t.dtype"},
        {tensor(R"({"dtype":"F32","shape":4,"data_offsets":[0,4]})"), 4, "t.shape"},
        {tensor(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), 4, "t.shape"},
        {tensor(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), 4, "t.shape"},
        {tensor(R"({"dtype":"F32","shape":[true],"data_offsets":[0,4]})"), 4, "t.shape"},
        {tensor(R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})"), 4, "t.shape"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":{}})"), 4, "t.data_offsets"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,"4"]})"), 4, "t.data_offsets"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4]})"), 4, "t.data_offsets"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,4]})"), 4, "t.data_offsets"},
        {R"({"__metadata__":{"a":1}})", 0, "__metadata__.a"},
        {R"({"__metadata__":{"a":{}}})", 0, "__metadata__.a"},
        {R"({"__metadata__":"a"})", 0, "__metadata__"},
        // missing and unknown fields
        {tensor(R"({"dtype":"F32","shape":[1]})"), 4, "t.data_offsets"},
        {tensor(R"({"shape":[1],"data_offsets":[0,4]})"), 4, "t.dtype"},
        {tensor(R"({"dtype":"F32","data_offsets":[0,4]})"), 4, "t.shape"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1})"), 4, "t.more"},
        {tensor(R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})"), 4, "t.dtype"},
        // duplicates
        {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
         4, "t"},
        {tensor(R"({"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]})"), 4, "t.shape"},
        {R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__"},
        {R"({"__metadata__":{"a":"1","a":"1"}})", 0, "__metadata__.a"},
        // sizes and offsets
        {tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), 4, "t.data_offsets"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), 4, "t.data_offsets"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), 3, "t.data_offsets"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), 5, "buffer"},
        {tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})"), 5, "t.data_offsets"},
        {"{}", 1, "buffer"},
        {tensor(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})"), 1, "t.shape"},
        {tensor(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0, "t.shape"},
        {tensor(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"), 0, "t.shape"},
        {tensor(R"({"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]})"), 0, "t.shape"},
        {tensor(R"({"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]})"), 0, "t.shape"},
        {tensor(R"({"dtype":"U8","shape":[0],"data_offsets":[18446744073709551615,18446744073709551615]})"), 0,
         "t.data_offsets"},
        {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
         4, "b.data_offsets"},
        {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
         4, "b.data_offsets"},
        {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
         4, "b.data_offsets"},
        {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
         4, "b.data_offsets"},
    };
    for (const lie& each : lies) {
        INFO(each.header);
        CHECK(field_of(each.header, each.buffer) == each.field);
    }
}

TEST_CASE("a header length past the file or past the format's limit is refused") {
    const auto with_length = [](std::uint64_t length, std::size_t follow) {
        std::string file;
        for (std::size_t i = 0; i != 8; ++i)
            file += static_cast<char>(length >> (8 * i) & 0xFF);
        return file + std::string(follow, ' ');
    };
    CHECK(field_of(std::string()) == "header length");
    CHECK(field_of(std::string(7, '\0')) == "header length");
    CHECK(field_of(with_length(0, 0)) == "header");
    CHECK(field_of(with_length(3, 2)) == "header length");
    CHECK(field_of(with_length(~std::uint64_t{0}, 2)) == "header length");
    CHECK(field_of(with_length(~std::uint64_t{0} - 7, 2)) == "header length");
    CHECK(field_of(with_length(100'000'001, 2)) == "header length");
}

TEST_CASE("a header nested a million levels deep is refused without recursion") {
    CHECK(field_of("{\"a\":" + std::string(1'000'000, '[') + "}", 0) == "a");
    CHECK(field_of(R"({"a":{"dtype":"F32","shape":)" + std::string(1'000'000, '[') + "}", 0) == "a.shape");
}

TEST_CASE("an error shows a long or unprintable tensor name cut and clean") {
    const auto field = field_of("{\"" + std::string(100'000, 'n') + "\":1}", 0);
    CHECK(field.size() == 83);
    CHECK(field.ends_with("..."));
    CHECK(field_of("{\"\":1}", 0) == "\"\"");
    CHECK(field_of("{\"a\\n\\u0000b\":1}", 0) == "a??b");
    const auto cut = field_of("{\"" + std::string(79, 'n') + "\xC3\xA9" + "zz\":1}", 0);
    CHECK(cut == std::string(79, 'n') + "...");
}

TEST_CASE("every truncation of a safetensors file is refused") {
    const std::string file = safetensors(two_tensors, std::string(26, '\1'));
    REQUIRE(field_of(file).empty());
    for (std::size_t length = 0; length != file.size(); ++length) {
        INFO(length);
        CHECK_FALSE(field_of(file.substr(0, length)).empty());
    }
}

TEST_CASE("a flipped byte leaves the header refused or consistent") {
    const std::uint32_t seed = 20260418;
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const std::string file = safetensors(two_tensors, std::string(26, '\1'));
    std::size_t refused = 0;
    constexpr std::size_t rounds = 20000;
    for (std::size_t round = 0; round != rounds; ++round) {
        std::string damaged = file;
        for (std::size_t flips = 1 + random() % 3; flips != 0; --flips)
            damaged[random() % damaged.size()] = static_cast<char>(random());
        if (random() % 8 == 0)
            damaged.resize(random() % (damaged.size() + 1));
        refused += !field_of(damaged).empty(); // reads nothing out of bounds
    }
    std::cout << "safetensors corruption: seed " << seed << ", " << refused << " of " << rounds << " refused\n";
    CHECK(refused > rounds / 2);
}

TEST_CASE("a tensor is returned only in the requested shape and in a dtype that weights have") {
    const testing_files::temporary_directory directory;
    directory.write("m.safetensors",
                    safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                R"("b":{"dtype":"F16","shape":[1,1],"data_offsets":[8,10]},)"
                                R"("c":{"dtype":"I64","shape":[1],"data_offsets":[10,18]},)"
                                R"("d":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[18,19]}})",
                                std::string("\0\0\x80\x3F\0\0\0\x40\0\x3C", 10) + std::string(9, '\0')));
    const auto file = kv::safetensors_file::open(directory.path() / "m.safetensors");
    REQUIRE(file);
    const auto ask = [&](std::string_view name, std::vector<std::size_t> shape) { return file->tensor(name, shape); };

    const auto a = ask("a", {2});
    REQUIRE(a);
    CHECK((*a)[0] == 1.0F);
    CHECK((*a)[1] == 2.0F);
    const auto b = ask("b", {1, 1});
    REQUIRE(b);
    CHECK(b->dtype == kv::dtype::f16);
    CHECK((*b)[0] == 1.0F);

    const auto refused = [&](std::string_view name, std::vector<std::size_t> shape) {
        const auto answer = ask(name, std::move(shape));
        REQUIRE_FALSE(answer);
        CHECK(answer.error().message.find("m.safetensors") != std::string::npos);
        return answer.error();
    };
    CHECK(refused("a", {3}).field == "a.shape");
    CHECK(refused("a", {2, 1}).code == kv::error_code::mismatched);
    CHECK(refused("a", {}).field == "a.shape");
    CHECK(refused("c", {1}).field == "c.dtype");
    CHECK(refused("d", {1}).code == kv::error_code::unsupported);
    CHECK(refused("nothing", {1}).code == kv::error_code::not_found);

    std::filesystem::resize_file(directory.path() / "m.safetensors", 20);
    CHECK(refused("a", {2}).code == kv::error_code::truncated);
}

TEST_CASE("real small safetensors files open, and only their floats are given out") {
    const std::filesystem::path folder = test_folders::data() / "safetensors";
    if (!testing_files::has_test_data(folder))
        return;
    const auto open = [&](const char* name) { return kv::safetensors_file::open(folder / name); };
    const std::size_t three[] = {2, 2, 3}, four[] = {2, 3, 1, 3}, one[] = {3}, two[] = {2, 3};
    REQUIRE(open("tensor-3d-float32.safetensors"));
    CHECK(open("tensor-3d-float32.safetensors")->tensor("embedding", three));
    CHECK(open("tensor-4d-float32.safetensors")->tensor("embedding", four));
    // Its writer aligned the buffer without recording it in the header, which leaves five bytes outside all tensors;
    // the format's reference implementation rejects it too.
    const auto shifted = open("weight-inspect-tiny.safetensors");
    REQUIRE_FALSE(shifted);
    CHECK(shifted.error().field == "buffer");
    const auto integers = open("tensor-1d-int32.safetensors");
    REQUIRE(integers);
    CHECK(integers->tensor("embedding", one).error().field == "embedding.dtype");
    const auto doubles = open("tensor-2d-float64.safetensors");
    REQUIRE(doubles);
    CHECK(doubles->tensor("embedding", two).error().field == "embedding.dtype");
}
