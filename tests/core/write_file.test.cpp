// SPDX-License-Identifier: MIT
#include <kvcache/core/file.hpp>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>

namespace kv = kvcache;
namespace fs = std::filesystem;

namespace {

std::string content(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

kv::result<void> write(const fs::path& file, const std::vector<std::string>& parts) {
    std::vector<std::span<const std::byte>> bytes;
    for (const std::string& part : parts)
        bytes.push_back(testing_files::bytes_of(part));
    return kv::write_file(file, bytes);
}

std::size_t files_in(const fs::path& directory) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

} // namespace

TEST_CASE("a written file has all its parts, replaces the old one, and leaves no temporary file") {
    const testing_files::temporary_directory directory;
    const fs::path file = directory.path() / "a";
    CHECK(write(file, {"one", "", "two"}));
    CHECK(content(file) == "onetwo");
    const std::string large(3'000'000, 'x');
    CHECK(write(file, {large, "y"}));
    CHECK(content(file) == large + "y");
    CHECK(write(file, {}));
    CHECK(content(file).empty());
    CHECK(files_in(directory.path()) == 1);
}

TEST_CASE("a failed write leaves the old file and no temporary file") {
    const testing_files::temporary_directory directory;
    const auto nowhere = write(directory.path() / "no" / "a", {"x"});
    REQUIRE_FALSE(nowhere);
    CHECK(nowhere.error().code == kv::error_code::io);
    CHECK(nowhere.error().field == "a");

    fs::create_directory(directory.path() / "taken");
    directory.write("taken/inside", "x"); // a directory cannot be replaced by a file
    CHECK_FALSE(write(directory.path() / "taken", {"x"}));
    CHECK(content(directory.path() / "taken" / "inside") == "x");
    CHECK(files_in(directory.path()) == 1);
}
