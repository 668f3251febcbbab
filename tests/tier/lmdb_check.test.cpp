// SPDX-License-Identifier: MIT
#include <kvcache/core/little_endian.hpp>
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>

#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using testing_files::temporary_directory;
constexpr std::size_t page_bytes = 4096;

// A store with large values, free pages and branches.
std::string checked_store() {
    const temporary_directory directory;
    {
        auto tier = kv::tier::lmdb<>{.directory = directory.path(),
                                     .bytes = std::size_t{4} << 20,
                                     .records = 150,
                                     .sync = kv::tier::sync_policy::by_the_system}
                        .open();
        for (std::uint64_t n = 0; n < 200; ++n) {
            REQUIRE(kv::testing::detail::put_record(tier, n));
            if (n % 20 == 0)
                REQUIRE(tier.flush());
        }
        REQUIRE(tier.flush());
    }
    std::ifstream in(directory.path() / "data.mdb", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// The words of the check; empty for a sound store.
std::string words_of(const std::string& store) {
    static constexpr std::array<kv::tier::lmdb_table, 4> tables = {
        {{"records", 32}, {"places", 32, 8}, {"order", 8, 52}, {"books", 0, 8}}};
    const temporary_directory directory;
    directory.write("data.mdb", store);
    const auto file = kv::platform::open_no_link(directory.path() / "data.mdb", kv::platform::access::read);
    REQUIRE(file);
    const auto sound = kv::tier::lmdb_check::run(file, tables);
    if (sound)
        return {};
    CHECK(sound.error().code == kv::error_code::malformed);
    return sound.error().message;
}

template <class N>
N number_in(const std::string& store, std::size_t at) {
    return kv::load_little<N>(std::as_bytes(std::span(store)), at);
}
template <class N>
std::string with(std::string store, std::size_t at, N number) {
    kv::store_little(std::as_writable_bytes(std::span(store)), at, number);
    return store;
}

} // namespace

TEST_CASE("a sound LMDB file, an empty one and one that grew by unused pages pass the check") {
    const std::string sound = checked_store();
    CHECK(words_of(sound).empty());
    CHECK(words_of("").empty());
    CHECK(words_of(sound + std::string(3 * page_bytes, 'x')).empty());
}

TEST_CASE("each fault of the meta pages of an LMDB file is found") {
    const std::string sound = checked_store();
    const std::size_t newer =
        number_in<std::uint64_t>(sound, 144) < number_in<std::uint64_t>(sound, page_bytes + 144) ? page_bytes : 0;
    REQUIRE(words_of(sound).empty());
    const auto damage = [&](std::size_t at, auto number) { return words_of(with(sound, newer + at, number)); };
    CHECK(damage(10, std::uint16_t{2}).find("no meta page") != std::string::npos);           // type
    CHECK(damage(16, std::uint32_t{0xBEEFC0DF}).find("no meta page") != std::string::npos);  // magic number
    CHECK(damage(20, std::uint32_t{999}).find("no meta page") != std::string::npos);         // version
    CHECK(damage(32, std::uint64_t{1} << 50).find("a map that") != std::string::npos);       // map, too large
    CHECK(damage(32, std::uint64_t{page_bytes}).find("a map that") != std::string::npos);    // too small
    CHECK(damage(40, std::uint32_t{8192}).find("no meta page") != std::string::npos);        // page size
    CHECK(damage(44, std::uint16_t{9}).find("no meta page") != std::string::npos);           // a fixed address
    CHECK(damage(136, std::uint64_t{1} << 40).find("number of pages") != std::string::npos); // last page
    CHECK(damage(136, number_in<std::uint64_t>(sound, newer + 136) + 1).find("neither") != std::string::npos);
    CHECK(damage(144, std::uint64_t{77}).find("another transaction") != std::string::npos);
    CHECK(damage(134, std::uint16_t{0xffff}).find("wrong depth") == std::string::npos); // the root's highest bytes
    CHECK_FALSE(damage(134, std::uint16_t{0xffff}).empty());
}

TEST_CASE("a page that is both used and free, and a tree with a circle, are found") {
    const std::string sound = checked_store();
    std::optional<std::size_t> branch, list;
    std::uint64_t used = 0;
    for (std::size_t page = 2 * page_bytes; page < sound.size(); page += page_bytes) {
        const auto flags = number_in<std::uint16_t>(sound, page + 10);
        const std::size_t node = page + number_in<std::uint16_t>(sound, page + 16);
        if (flags == kv::tier::lmdb_layout::branch_page && !words_of(with(sound, node, std::uint16_t{0xffff})).empty())
            branch = node;
        // The tree of free pages has keys of 8 bytes with small numbers, and each value begins with its length.
        if (flags == kv::tier::lmdb_layout::leaf_page && number_in<std::uint16_t>(sound, node + 6) == 8 &&
            number_in<std::uint64_t>(sound, node + 8) < 1000 && number_in<std::uint16_t>(sound, node + 4) == 0 &&
            number_in<std::uint64_t>(sound, node + 16) > 0 &&
            number_in<std::uint16_t>(sound, node) == 8 + 8 * number_in<std::uint64_t>(sound, node + 16) &&
            !words_of(with(sound, node + 16, std::uint64_t{1} << 40)).empty())
            list = node;
    }
    REQUIRE(branch);
    used = *branch / page_bytes;
    CHECK(words_of(with(sound, *branch, static_cast<std::uint16_t>(used))) ==
          "data.mdb is damaged: page " + std::to_string(used) + " is used twice");
    REQUIRE(list);
    CHECK_FALSE(words_of(with(sound, *list + 24, used)).empty());
}

TEST_CASE("every page of a tree is checked: its number, type, nodes and keys") {
    const std::string sound = checked_store();
    std::size_t leaves = 0;
    for (std::size_t page = 2 * page_bytes; page < sound.size(); page += page_bytes) {
        if (number_in<std::uint16_t>(sound, page + 10) != kv::tier::lmdb_layout::leaf_page ||
            words_of(with(sound, page, std::uint64_t{1})).empty()) // free, or the inside of a record
            continue;
        ++leaves;
        const auto lower = number_in<std::uint16_t>(sound, page + 12),
                   upper = number_in<std::uint16_t>(sound, page + 14);
        const auto first = number_in<std::uint16_t>(sound, page + 16);
        CHECK_FALSE(words_of(with(sound, page + 10, std::uint16_t{32})).empty());
        CHECK_FALSE(words_of(with(sound, page + 12, static_cast<std::uint16_t>(lower + 2))).empty());
        CHECK_FALSE(words_of(with(sound, page + 12, std::uint16_t{16})).empty());
        CHECK_FALSE(words_of(with(sound, page + 14, static_cast<std::uint16_t>(upper - 2))).empty());
        CHECK_FALSE(words_of(with(sound, page + 16, static_cast<std::uint16_t>(first + 2))).empty());
        CHECK_FALSE(words_of(with(sound, page + 16, std::uint16_t{0xfff0})).empty());
        CHECK_FALSE(words_of(with(sound, page + first + 6, std::uint16_t{600})).empty());
        if (lower > 18) { // two keys of one page, exchanged
            const auto second = number_in<std::uint16_t>(sound, page + 18);
            CHECK_FALSE(words_of(with(with(sound, page + 16, second), page + 18, first)).empty());
        }
    }
    CHECK(leaves > 4);
}
