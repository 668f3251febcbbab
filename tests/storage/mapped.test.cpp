// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/storage/mapped.hpp>
#include <kvcache/testing/role_conformance.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>
#include <sys/resource.h>

namespace kv = kvcache;

namespace {

/// A temporary directory, deleted at the end.
struct folder {
    std::filesystem::path path;
    folder() {
        std::string name = (std::filesystem::temp_directory_path() / "kvcache-test-XXXXXX").string();
        path = ::mkdtemp(name.data());
    }
    ~folder() { std::filesystem::remove_all(path); }
};

} // namespace

TEST_CASE("a mapped file grows with the pages that are used") {
    const folder home;
    const auto file = home.path / "pages";
    {
        auto state = kv::storage::mapped{.file = file, .unlink = false, .growth = 8192}.open(100, 4096);
        REQUIRE(state.status());
        CHECK(std::filesystem::file_size(file) == 0);
        REQUIRE(state.acquire(kv::page_id{0}));
        CHECK(std::filesystem::file_size(file) == 8192);
        kvcache::ranges::fill(state.bytes(kv::page_id{0}), std::byte{'a'});
        REQUIRE(state.acquire(kv::page_id{99}));
        CHECK(state.size() == 100 * 4096);
        CHECK(state.bytes(kv::page_id{0}).back() == std::byte{'a'});
        auto moved = std::move(state);
        CHECK(moved.acquire(kv::page_id{50}));
        CHECK(moved.file() == file);
    }
    std::ifstream in(file, std::ios::binary);
    CHECK(in.get() == 'a');
}

TEST_CASE("an unlinked file leaves no trace") {
    const folder home;
    auto state = kv::storage::mapped{.file = home.path / "pages"}.open(10, 100);
    CHECK(state.acquire(kv::page_id{9}));
    CHECK(std::filesystem::is_empty(home.path));
}

TEST_CASE("a mapped file overwrites nothing and reports why it refuses") {
    const folder home;
    const auto file = home.path / "precious";
    std::ofstream(file) << "words";
    auto taken = kv::storage::mapped{.file = file}.open(10, 100);
    CHECK_FALSE(taken.acquire(kv::page_id{0}));
    REQUIRE_FALSE(taken.status());
    CHECK(taken.status().error().code == kv::error_code::io);
    CHECK(taken.status().error().field == "precious");
    CHECK(std::filesystem::file_size(file) == 5);

    auto nowhere = kv::storage::mapped{.file = home.path / "no" / "folder"}.open(10, 100);
    CHECK_FALSE(nowhere.acquire(kv::page_id{0}));
    CHECK(nowhere.status().error().message.find("cannot be created") != std::string::npos);
}

TEST_CASE("a full disk is a refused page and the others stay") {
    const folder home;
    auto state = kv::storage::mapped{.file = home.path / "pages", .growth = 4096}.open(100, 4096);
    REQUIRE(state.acquire(kv::page_id{1}));
    kvcache::ranges::fill(state.bytes(kv::page_id{1}), std::byte{3});
    ::rlimit before = {};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto asked = std::signal(SIGXFSZ, SIG_IGN);
    const ::rlimit small{8192, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0); // simulates a disk of 8 KiB
    const bool more = state.acquire(kv::page_id{2});
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, asked);
    CHECK_FALSE(more);
    CHECK(state.status().error().message.find("cannot grow") != std::string::npos);
    CHECK(kvcache::ranges::all_of(state.bytes(kv::page_id{1}), [](std::byte b) { return b == std::byte{3}; }));
    CHECK(state.acquire(kv::page_id{2}));
    CHECK(state.status());
}
