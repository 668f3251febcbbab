// SPDX-License-Identifier: MIT
#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/codec/row_major.hpp>
#include <kvcache/testing/reference_attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/pages.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// Largest difference from the oracle, over rows [first, first + out rows). Values are in [-1, 1].
double error_of(const pages::sequence& s, std::size_t first, std::span<const float> out) {
    const std::size_t width = s.width(), seen = first + out.size() / width;
    const std::size_t row = std::size_t{s.shape.kv_heads} * s.shape.head_dim;
    const auto truth =
        kv::reference_attention(s.turned(), {.queries = std::span(s.queries).subspan(first * width, out.size()),
                                             .keys = std::span(s.keys).first(seen * row),
                                             .values = std::span(s.values).first(seen * row),
                                             .position = first});
    double worst = 0.0;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const double off = std::abs(static_cast<double>(out[i]) - truth[i]);
        worst = off <= worst ? worst : off; // NaN is worst
    }
    return worst;
}

constexpr double tolerance = 4e-6; // the error of float32 scores of magnitude 10 is about 1e-6

} // namespace

TEST_CASE("attention over pages agrees with the double oracle for every head size and group") {
    for (const std::uint32_t dim : {8u, 16u, 24u, 64u, 80u, 128u})
        for (const std::uint32_t group : {1u, 2u, 3u, 7u, 9u, 16u}) {
            const pages::sequence s(2 * group, 2, dim, 83, dim * 100 + group);
            const pages::written w(s, 32, pages::in_place(83, 32), 0.0f);
            INFO("head_dim " << dim << ", group " << group);
            REQUIRE(error_of(s, 0, w.run(0, 83, 16)) < tolerance);
        }
}

TEST_CASE("attention agrees with the oracle across splits of long contexts") {
    const pages::sequence s(3, 1, 24, 2500, 7);
    const pages::written w(s, 64, pages::in_place(2500, 64), 0.0f);
    for (const std::size_t first :
         {0u, 1u, 14u, 15u, 16u, 500u, 1022u, 1023u, 1024u, 1039u, 1040u, 2046u, 2047u, 2048u, 2063u, 2498u}) {
        INFO("from row " << first);
        CHECK(error_of(s, first, w.run(first, first + 2, 2)) < tolerance);
    }
}

TEST_CASE("page sizes change no bit") {
    const pages::sequence s(6, 2, 24, 1100, 8);
    const pages::written small(s, 16, pages::in_place(1100, 16), 0.0f);
    const auto head = small.run(0, 40, 8), tail = small.run(1010, 1100, 8);
    for (const std::uint32_t tokens : {32u, 64u, 256u, 2048u}) {
        const pages::written w(s, tokens, pages::in_place(1100, tokens), 0.0f);
        INFO("pages of " << tokens);
        CHECK(numbers::same_bits(w.run(0, 40, 8), head));
        CHECK(numbers::same_bits(w.run(1010, 1100, 8), tail));
    }
}

TEMPLATE_TEST_CASE("pages of any number of rows agree with the double oracle, and a row with itself alone", "",
                   kv::codec::nhd_f32, kv::codec::hnd_f32) {
    const pages::sequence s(6, 2, 24, 1100, 9);
    for (const std::uint32_t tokens : {1u, 4u, 7u, 12u, 16u, 17u, 100u}) {
        const pages::written_by<TestType> w(s, tokens, pages::in_place(1100, tokens), numbers::not_a_number);
        INFO("pages of " << tokens);
        const auto some = w.run(1000, 1100, 8);
        CHECK(error_of(s, 0, w.run(0, 40, 8)) < tolerance);
        CHECK(error_of(s, 1000, some) < tolerance);
        CHECK(numbers::same_bits(w.run(1000, 1100, 1), some));
    }
}

TEST_CASE("query rows run one by one, together or in any block give the same bits") {
    for (const std::uint32_t group : {1u, 2u, 3u, 5u, 8u, 9u, 16u}) {
        const pages::sequence s(group, 1, 16, 1061, group);
        const pages::written w(s, 32, pages::in_place(1061, 32), 0.0f);
        for (const std::size_t first : {std::size_t{0}, std::size_t{1009}}) {
            const auto alone = w.run(first, first + 52, 1);
            for (const std::size_t at_once : {2u, 3u, 4u, 7u, 8u, 16u, 17u, 52u}) {
                INFO("group " << group << " from " << first << ", " << at_once << " at once");
                CHECK(numbers::same_bits(w.run(first, first + 52, at_once), alone));
            }
        }
    }
}

TEST_CASE("a row has the same bits whether its future is written or not") {
    const pages::sequence s(2, 2, 24, 200, 12);
    const pages::written whole(s, 64, pages::in_place(200, 64), 0.0f);
    for (const std::size_t tokens : {1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 130u}) {
        const pages::written part(s, 64, pages::in_place(tokens, 64), 0.0f);
        CHECK(numbers::same_bits(part.run(tokens - 1, tokens, 1), whole.run(tokens - 1, tokens, 1)));
    }
}

TEST_CASE("what lies in unused rows of a page changes nothing") {
    const pages::sequence s(4, 2, 24, 90, 13);
    const std::vector<pages::piece> pieces = {{40, 7, 0}, {3, 16, 0}, {1, 30, 5}, {20, 20, -3}, {26, 1, -3}};
    const pages::written zeros(s, 48, pieces, 0.0f);
    const auto want = zeros.run(0, 90, 5);
    for (const float filler : {numbers::not_a_number, numbers::infinity, -numbers::infinity, 3e38f}) {
        const pages::written garbage(s, 48, pieces, filler);
        CHECK(numbers::same_bits(garbage.run(0, 90, 5), want));
    }
}

TEST_CASE("a chunk whose keys were rotated elsewhere attends as if it were here") {
    const pages::sequence s(6, 2, 64, 150, 14);
    for (const std::int64_t base : {-1000, -64, -1, 1, 37, 64, 100000}) {
        const pages::written w(s, 64, {{64, 0, 0}, {64, 0, base}, {22, 0, 0}}, 0.0f);
        INFO("base " << base);
        CHECK(error_of(s, 0, w.run(0, 150, 16)) < tolerance);
    }
}

TEST_CASE("entries that begin inside a page, end inside it or change base agree with the oracle") {
    const pages::sequence s(3, 1, 80, 300, 15);
    const std::vector<pages::piece> pieces = {{64, 0, 0},  {5, 59, 9},  {1, 0, 9},    {16, 16, 9}, {17, 15, -40},
                                              {30, 33, 0}, {64, 0, 12}, {48, 16, 12}, {31, 1, 64}, {24, 40, 0}};
    const pages::written w(s, 64, pieces, numbers::not_a_number);
    CHECK(error_of(s, 0, w.run(0, 300, 7)) < tolerance);
    CHECK(numbers::same_bits(w.run(0, 300, 7), w.run(0, 300, 1)));
}

TEST_CASE("partial entries across a split agree with the oracle") {
    const pages::sequence s(2, 1, 16, 2200, 16);
    std::vector<pages::piece> pieces;
    for (std::size_t at = 0, i = 0; at < 2200; ++i) {
        const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(1 + i * 7 % 60, 2200 - at));
        pieces.push_back({count, static_cast<std::uint32_t>(i % (65 - count)), static_cast<std::int64_t>(i % 3) * 50});
        at += count;
    }
    const pages::written w(s, 64, pieces, numbers::not_a_number);
    for (const std::size_t first : {0u, 1020u, 2040u, 2190u}) {
        CHECK(error_of(s, first, w.run(first, first + 10, 10)) < tolerance);
        CHECK(numbers::same_bits(w.run(first, first + 10, 10), w.run(first, first + 10, 1)));
    }
}

TEST_CASE("a codec that decodes into scratch gives the bits of one that reads in place") {
    for (const std::uint32_t group : {1u, 3u, 8u}) {
        const pages::sequence s(2 * group, 2, 24, 1100, 18);
        const pages::written w(s, 64, pages::in_place(1100, 64), 0.0f);
        for (const std::size_t first : {0u, 37u, 1010u}) {
            const std::size_t last = first + 70;
            CHECK(numbers::same_bits(w.attend_copies(first, last, 16), w.run(first, last, 16)));
        }
        const pages::written pieces(s, 64, {{64, 0, 0}, {5, 59, 9}, {17, 15, -40}, {30, 33, 0}}, 0.0f);
        CHECK(numbers::same_bits(pieces.attend_copies(60, 116, 16), pieces.run(60, 116, 16)));
    }
}

TEST_CASE("a model without a rotation attends to keys as they are") {
    pages::sequence s(2, 1, 16, 40, 17);
    s.rotation = kv::rope(std::vector<double>(8, 0.0)); // rotates by nothing
    const pages::written w(s, 16, pages::in_place(40, 16), 0.0f);
    const auto truth = kv::reference_attention(s.shape, {s.queries, s.keys, s.values, 0});
    const auto out = w.run(0, 40, 4);
    for (std::size_t i = 0; i < out.size(); ++i)
        REQUIRE(std::abs(static_cast<double>(out[i]) - truth[i]) < tolerance);
}
