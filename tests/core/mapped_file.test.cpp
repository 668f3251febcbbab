// SPDX-License-Identifier: MIT
#include <kvcache/core/file.hpp>

#include <filesystem>
#include <string>
#include <utility>

#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>
#if KVCACHE_POSIX
#include <sys/stat.h>
#endif

namespace kv = kvcache;

TEST_CASE("a mapped file shows its bytes, wherever it is moved") {
    const testing_files::temporary_directory directory;
    directory.write("a", "hello");
    auto mapped = kv::mapped_file::open(directory.path() / "a");
    REQUIRE(mapped);
    const auto* where = mapped->bytes().data();
    kv::mapped_file moved = *std::move(mapped);
    CHECK(moved.bytes().size() == 5);
    CHECK((moved.bytes().data() == where));
    CHECK(std::to_integer<char>(moved.bytes()[4]) == 'o');
    CHECK(moved.name() == "a");
    CHECK(moved.intact());

    directory.write("empty", "");
    auto empty = kv::mapped_file::open(directory.path() / "empty");
    REQUIRE(empty);
    CHECK(empty->bytes().empty());
    CHECK(empty->intact());
    *empty = std::move(moved);
    CHECK((empty->bytes().data() == where));
}

TEST_CASE("what cannot be mapped is refused by its kind") {
    const testing_files::temporary_directory directory;
    const auto missing = kv::mapped_file::open(directory.path() / "missing");
    REQUIRE_FALSE(missing);
    CHECK(missing.error().code == kv::error_code::not_found);
    CHECK(missing.error().field == "missing");

    const auto folder = kv::mapped_file::open(directory.path());
    REQUIRE_FALSE(folder);
    CHECK(folder.error().code == kv::error_code::io);

#if KVCACHE_POSIX
    REQUIRE(::mkfifo((directory.path() / "pipe").c_str(), 0600) == 0);
    const auto pipe = kv::mapped_file::open(directory.path() / "pipe"); // does not wait for a writer
    REQUIRE_FALSE(pipe);
    CHECK(pipe.error().code == kv::error_code::io);
#endif
}

#if KVCACHE_POSIX // Windows keeps a mapped file from shrinking

TEST_CASE("a file that shrank since it was mapped is no longer intact") {
    const testing_files::temporary_directory directory;
    directory.write("a", std::string(10000, 'x'));
    const auto mapped = kv::mapped_file::open(directory.path() / "a");
    REQUIRE(mapped);
    std::filesystem::resize_file(directory.path() / "a", 9999);
    const auto whole = mapped->intact();
    REQUIRE_FALSE(whole);
    CHECK(whole.error().code == kv::error_code::truncated);
}

#endif
