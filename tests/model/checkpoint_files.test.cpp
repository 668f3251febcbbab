// SPDX-License-Identifier: MIT
#include <kvcache/model/checkpoint_files.hpp>

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a piecewise digest is of the bytes, on any number of threads") {
    constexpr std::size_t mebibyte = std::size_t{1} << 20;
    std::vector<std::byte> bytes(3 * mebibyte + 5);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::byte>((i * 7 >> 5) + (i >> 20));
    kv::thread_pool alone(1), three(3);
    std::set<kv::digest> distinct;
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, mebibyte - 1, mebibyte, mebibyte + 1, 2 * mebibyte, bytes.size()}) {
        const auto some = std::span<const std::byte>(bytes).first(size);
        CHECK(kv::tree_hash(some, alone) == kv::tree_hash(some, three));
        CHECK(distinct.insert(kv::tree_hash(some, alone)).second);
    }
    for (const std::size_t at : {std::size_t{0}, mebibyte, bytes.size() - 1}) {
        bytes[at] ^= std::byte{1};
        CHECK(distinct.insert(kv::tree_hash(bytes, three)).second);
        bytes[at] ^= std::byte{1};
    }
    std::swap_ranges(bytes.begin(), bytes.begin() + mebibyte, bytes.begin() + mebibyte);
    CHECK(distinct.insert(kv::tree_hash(bytes, three)).second);
}
