// SPDX-License-Identifier: MIT
#include <kvcache/tier/prefix_code.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
using kv::tier::prefix_code;
using kv::tier::prefix_decoder;

namespace {

// The bits of an optimal code without a limit: the sum of the inner nodes of Huffman's tree.
std::uint64_t optimal_bits(const prefix_code::counts_type& counts) {
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> nodes;
    for (const std::uint32_t n : counts)
        if (n > 0)
            nodes.push(n);
    std::uint64_t bits = 0;
    while (nodes.size() > 1) {
        const std::uint64_t a = nodes.top();
        nodes.pop();
        const std::uint64_t both = a + nodes.top();
        nodes.pop();
        nodes.push(both);
        bits += both;
    }
    return bits;
}

std::uint64_t bits_of(const prefix_code::counts_type& counts, const prefix_code::lengths_type& lengths) {
    std::uint64_t bits = 0;
    for (std::size_t byte = 0; byte < 256; ++byte)
        bits += std::uint64_t{counts[byte]} * lengths[byte];
    return bits;
}

prefix_code::counts_type counts_of(std::span<const std::uint8_t> bytes) {
    prefix_code::counts_type counts{};
    for (const std::uint8_t byte : bytes)
        ++counts[byte];
    return counts;
}

// Bytes of `kinds` values, the next half as likely as the one before where `steep`.
std::vector<std::uint8_t> some(std::mt19937& dice, std::size_t size, unsigned kinds, bool steep) {
    std::vector<std::uint8_t> made(size);
    for (std::uint8_t& byte : made) {
        auto kind = static_cast<unsigned>(dice() % kinds);
        if (steep)
            for (kind = 0; kind + 1 < kinds && dice() % 2 == 0;)
                ++kind;
        byte = static_cast<std::uint8_t>(kind * 89 + 7);
    }
    return made;
}

} // namespace

TEST_CASE("lengths are those of an optimal code where no code is longer than the limit") {
    const unsigned seed = 1;
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    for (int round = 0; round < 300; ++round) {
        const auto bytes = some(dice, 1 + dice() % 5000, 1 + dice() % 256, dice() % 2 == 0);
        const auto counts = counts_of(bytes);
        const auto lengths = prefix_code::lengths_for(counts);
        REQUIRE(prefix_code::valid(lengths));
        for (std::size_t byte = 0; byte < 256; ++byte)
            REQUIRE((lengths[byte] > 0) == (counts[byte] > 0));
        const std::uint64_t least = optimal_bits(counts), own = bits_of(counts, lengths);
        if (std::count_if(counts.begin(), counts.end(), [](auto n) { return n > 0; }) < 2)
            continue;
        REQUIRE(own >= least);
        const bool limited = *std::max_element(lengths.begin(), lengths.end()) == prefix_code::longest;
        REQUIRE(static_cast<double>(own) <= (limited ? 1.03 : 1.0) * static_cast<double>(least));
    }
    prefix_code::counts_type fibonacci{}; // the deepest tree for its total
    std::uint32_t a = 1, b = 1;
    for (std::size_t byte = 0; byte < 40; ++byte, b += a, a = b - a)
        fibonacci[byte] = a;
    const auto lengths = prefix_code::lengths_for(fibonacci);
    CHECK(prefix_code::valid(lengths));
    CHECK(*std::max_element(lengths.begin(), lengths.end()) == prefix_code::longest);
    CHECK(bits_of(fibonacci, lengths) < optimal_bits(fibonacci) * 103 / 100);
    prefix_code::lengths_type full{};
    full.fill(7); // twice the space
    CHECK_FALSE(prefix_code::valid(full));
    full.fill(12);
    CHECK_FALSE(prefix_code::valid(full));
}

TEST_CASE("bytes come back from their streams, for any count and any code") {
    const unsigned seed = 2;
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    for (std::size_t size = 0; size < 400; ++size) {
        const auto bytes = some(dice, size < 300 ? size : dice() % 40000, 1 + dice() % 256, dice() % 2 == 0);
        const prefix_code code(prefix_code::lengths_for(counts_of(bytes)));
        std::vector<std::byte> to(3);
        const auto sizes = code.encode(bytes, to);
        std::size_t total = 0;
        for (const std::size_t n : sizes)
            total += n;
        REQUIRE(to.size() == 3 + total);
        const std::vector<std::byte> streams(to.begin() + 3, to.end()); // an allocation of its very size
        std::vector<std::uint8_t> back(bytes.size());
        REQUIRE(prefix_decoder(code).decode(streams, sizes, back));
        REQUIRE(back == bytes);
        if (total == 0)
            continue;
        auto cut = sizes; // the last stream that has bytes
        *std::find_if(cut.rbegin(), cut.rend(), [](std::size_t n) { return n > 0; }) -= 1;
        REQUIRE_FALSE(prefix_decoder(code).decode(streams, cut, back));
    }
}

TEST_CASE("streams with more bits than bytes write nothing after their bytes") {
    prefix_code::lengths_type lengths{};
    lengths[7] = 1; // the code 0
    for (std::size_t size = 0; size < 2000; ++size) {
        const std::vector<std::byte> streams(4 * 600);
        std::vector<std::uint8_t> back(size + 4, 1);
        REQUIRE(
            prefix_decoder(prefix_code(lengths)).decode(streams, {600, 600, 600, 600}, std::span(back).first(size)));
        REQUIRE(std::count(back.begin(), back.end(), 7) == static_cast<std::ptrdiff_t>(size));
        REQUIRE(std::count(back.end() - 4, back.end(), 1) == 4);
    }
}

TEST_CASE("streams of any bits are decoded to some bytes or refused") {
    const unsigned seed = 3;
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    for (int round = 0; round < 500; ++round) {
        prefix_code::lengths_type lengths{};
        for (std::size_t i = dice() % 20; i > 0; --i)
            lengths[dice() % 256] = static_cast<std::uint8_t>(dice() % (prefix_code::longest + 1));
        if (!prefix_code::valid(lengths))
            continue;
        prefix_code::sizes_type sizes{};
        std::size_t total = 0;
        for (std::size_t& size : sizes)
            total += size = dice() % 200;
        std::vector<std::byte> streams(total);
        for (std::byte& one : streams)
            one = static_cast<std::byte>(dice());
        std::vector<std::uint8_t> to(dice() % 4000);
        static_cast<void>(prefix_decoder(prefix_code(lengths)).decode(streams, sizes, to));
    }
}
