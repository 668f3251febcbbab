// SPDX-License-Identifier: MIT
// Attention that is not plain: windows, soft caps and sinks.
#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/testing/reference_attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "attention/pages.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// The largest difference from the reference in double precision, over rows [first, last).
double distance(const pages::sequence& of, const std::vector<float>& got, std::size_t first) {
    const std::size_t rows = got.size() / of.width();
    const auto right =
        kv::reference_attention(of.turned(), {.queries = std::span(of.queries).subspan(first * of.width(), got.size()),
                                              .keys = of.keys,
                                              .values = of.values,
                                              .position = first});
    REQUIRE(right.size() == rows * of.width());
    double most = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i)
        most = std::max(most, std::isfinite(got[i]) ? std::abs(right[i] - static_cast<double>(got[i])) : 1e9);
    return most;
}

const std::vector<float> logits = {0.5f, -3.0f, 12.0f, 0.0f, 40.0f, -40.0f, 1.0f, 2.0f};

} // namespace

TEST_CASE("windows, soft caps and sinks are those of the double oracle") {
    for (const std::uint32_t dim : {16u, 256u, 512u}) {
        pages::sequence one(4, 2, dim, 180, 7 + dim);
        one.shape.scale = 2.0f / std::sqrt(static_cast<float>(dim)); // scores up to a few tens
        for (const std::uint32_t page_tokens : {16u, 64u}) {
            const pages::written made(one, page_tokens, pages::in_place(one.tokens, page_tokens), 0.0f);
            for (const std::uint32_t window : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 63u, 64u, 65u, 100u, 179u, 180u, 181u})
                for (const float cap : {0.0f, 2.5f, 50.0f})
                    for (const float* sinks : {static_cast<const float*>(nullptr), logits.data()}) {
                        if (dim > 16 &&
                            (page_tokens == 64 || cap == 2.5f || (window != 0 && window != 17 && window != 64)))
                            continue; // a few of the cases
                        one.shape.window = window;
                        one.shape.soft_cap = cap;
                        one.shape.sinks = sinks;
                        INFO("head_dim " << dim << ", pages of " << page_tokens << ", window " << window << ", cap "
                                         << cap << (sinks == nullptr ? "" : ", sinks"));
                        CHECK(distance(one, made.run(0, one.tokens, 9), 0) < 2e-5);
                    }
        }
    }
}

TEST_CASE("a window's bits depend neither on what lies before it nor on the rows computed with it") {
    constexpr std::size_t tokens = 1100; // past a split
    pages::sequence one(4, 2, 64, tokens, 3), other(4, 2, 64, tokens, 3);
    for (const std::uint32_t page_tokens : {16u, 64u})
        for (const std::uint32_t window : {1u, 16u, 60u, 128u, 1000u}) {
            one.shape.window = other.shape.window = window;
            constexpr std::size_t first = tokens - 40;
            const std::size_t unread = first + 1 - window;
            const std::size_t row = std::size_t{one.shape.kv_heads} * one.shape.head_dim;
            other.keys = one.keys;
            other.values = one.values;
            std::fill_n(other.keys.begin(), unread * row, numbers::not_a_number);
            std::fill_n(other.values.begin(), unread * row, std::numeric_limits<float>::infinity());
            const pages::written made(one, page_tokens, pages::in_place(tokens, page_tokens), 0.0f);
            const pages::written spoilt(other, page_tokens, pages::in_place(tokens, page_tokens),
                                        numbers::not_a_number);
            const auto alone = made.run(first, tokens, 1);
            INFO("pages of " << page_tokens << ", window " << window);
            for (const std::size_t at_once : {std::size_t{1}, std::size_t{3}, std::size_t{16}, std::size_t{40}}) {
                CHECK(numbers::same_bits(made.run(first, tokens, at_once), alone));
                CHECK(numbers::same_bits(spoilt.run(first, tokens, at_once), alone));
            }
        }
}

TEST_CASE("a window of all tokens has the bits of none, and a shorter one has others") {
    pages::sequence one(2, 1, 32, 200, 5);
    const pages::written made(one, 16, pages::in_place(one.tokens, 16), 0.0f);
    const auto all = made.run(0, one.tokens, 8);
    one.shape.window = 200;
    CHECK(numbers::same_bits(made.run(0, one.tokens, 8), all));
    one.shape.window = 199;
    CHECK_FALSE(numbers::same_bits(made.run(0, one.tokens, 8), all));
    CHECK(kv::attention_shape{}.plain());
    CHECK_FALSE(one.shape.plain());
}
