// SPDX-License-Identifier: MIT
#include <kvcache/attention/query_block.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// Tiles of 16 tokens with random keys and values. (tokens / 16, head_dim, 16) and (tokens, width)
struct tiles {
    std::size_t dim, width;
    std::vector<float> keys, values;

    tiles(std::size_t head_dim, std::size_t tokens, std::uint64_t seed)
        : dim(head_dim),
          width((head_dim + 15) / 16 * 16),
          keys(numbers::uniforms(seed, tokens * head_dim, 2.0f)),
          values(numbers::uniforms(seed + 1, tokens * width)) {}

    [[nodiscard]] kv::attention_tile at(std::size_t position, std::size_t first, std::size_t last) const {
        const std::size_t tile = position / 16;
        return {keys.data() + tile * 16 * dim, values.data() + tile * 16 * width, first, last, position};
    }
    [[nodiscard]] float key(std::size_t t, std::size_t d) const { return keys[t / 16 * 16 * dim + d * 16 + t % 16]; }

    // Softmax attention of one query over tokens [first, last), in double precision.
    [[nodiscard]] std::vector<double> truth(std::span<const float> query, std::size_t first, std::size_t last) const {
        std::vector<double> out(dim), weights;
        double top = -1e300, total = 0.0;
        for (std::size_t t = first; t < last; ++t) {
            double score = 0.0;
            for (std::size_t d = 0; d < dim; ++d)
                score += static_cast<double>(query[d]) * static_cast<double>(key(t, d));
            weights.push_back(score);
            top = std::max(top, score);
        }
        for (std::size_t t = first; t < last; ++t) {
            const double weight = std::exp(weights[t - first] - top);
            total += weight;
            for (std::size_t d = 0; d < dim; ++d)
                out[d] += weight * static_cast<double>(values[t * width + d]);
        }
        for (double& x : out)
            x /= total;
        return out;
    }
};

} // namespace

TEST_CASE("one key gets all the weight: the output is its value, bit for bit") {
    for (const std::size_t dim : {8u, 24u, 64u}) {
        const tiles t(dim, 16, dim);
        for (std::size_t lane = 0; lane < 16; ++lane) {
            kv::query_block block(dim, 8);
            block.add(0);
            block.select(0, 1);
            block.place(0, numbers::uniforms(3, dim, 8.0f), 1.0f);
            kv::attention_tile tile = t.at(0, lane, lane + 1);
            block.run(tile);
            std::vector<float> out(dim);
            block.finish(0, out.data());
            CHECK(numbers::same_bits(out, {t.values.data() + lane * t.width, dim}));
        }
    }
}

TEST_CASE("any number of queries together, each the bits it has alone") {
    constexpr std::size_t dim = 40;
    const tiles t(dim, 64, 1);
    const auto queries = numbers::uniforms(9, 8 * dim, 2.0f);
    const auto run = [&](std::size_t first, std::size_t last) {
        kv::query_block block(dim, 8);
        for (std::size_t q = first; q < last; ++q)
            block.add(40 + q); // each sees another number of lanes of the third tile
        block.select(0, last - first);
        for (std::size_t q = first; q < last; ++q)
            block.place(q - first, {queries.data() + q * dim, dim}, 1.0f);
        for (std::size_t at = 0; at < 64; at += 16)
            block.run(t.at(at, 0, 16));
        std::vector<float> out((last - first) * dim);
        for (std::size_t q = first; q < last; ++q)
            block.finish(q - first, out.data() + (q - first) * dim);
        return out;
    };
    std::vector<float> alone;
    for (std::size_t q = 0; q < 8; ++q) {
        const auto one = run(q, q + 1);
        alone.insert(alone.end(), one.begin(), one.end());
        const auto truth = t.truth({queries.data() + q * dim, dim}, 0, 41 + q);
        for (std::size_t d = 0; d < dim; ++d)
            CHECK(std::abs(static_cast<double>(one[d]) - truth[d]) < 4e-6);
    }
    for (std::size_t n = 1; n <= 8; ++n)
        CHECK(numbers::same_bits(run(0, n), {alone.data(), n * dim}));
}

TEST_CASE("tiles given one by one or many at once are the same bits, over splits and the diagonal") {
    constexpr std::size_t dim = 40, tokens = 2080;
    const tiles t(dim, tokens, 7);
    std::vector<kv::attention_tile> all;
    for (std::size_t at = 0; at < tokens; at += 16)
        all.push_back(t.at(at, 0, 16));
    for (std::size_t n = 1; n <= 8; ++n) {
        const auto run = [&](std::size_t at_once) {
            kv::query_block block(dim, 8);
            for (std::size_t q = 0; q < n; ++q)
                block.add(tokens - 1 - 5 * q);
            block.select(0, n);
            for (std::size_t q = 0; q < n; ++q)
                block.place(q, numbers::uniforms(q, dim, 2.0f), 1.0f);
            std::vector<float> out(n * dim);
            for (std::size_t at = 0; at < all.size(); at += at_once)
                block.run(std::span(all).subspan(at, std::min(at_once, all.size() - at)));
            for (std::size_t q = 0; q < n; ++q)
                block.finish(q, out.data() + q * dim);
            return out;
        };
        const auto single = run(1);
        for (const std::size_t at_once : {2u, 3u, 4u, 5u, 130u})
            CHECK(numbers::same_bits(run(at_once), single));
    }
}

TEST_CASE("a block is clean after clear, in a later split too") {
    constexpr std::size_t dim = 16;
    const tiles t(dim, 32, 2);
    const auto query = numbers::uniforms(4, dim);
    const auto run = [&](kv::query_block& block) {
        block.clear();
        block.add(31);
        block.select(0, 1);
        block.place(0, query, 1.0f);
        block.run(t.at(0, 0, 16));
        block.run(t.at(16, 0, 16));
        std::vector<float> out(dim);
        block.finish(0, out.data());
        return out;
    };
    kv::query_block used(dim, 8), fresh(dim, 8);
    used.add(5000);
    used.select(0, 1);
    used.place(0, numbers::uniforms(5, dim), 1.0f);
    used.run({t.keys.data(), t.values.data(), 0, 16, 0});
    used.run({t.keys.data(), t.values.data(), 0, 16, 4096});
    CHECK(numbers::same_bits(run(used), run(fresh)));
}

TEST_CASE("splits of 1024 positions are partial softmaxes, merged in ascending order") {
    constexpr std::size_t dim = 16, tokens = 3072;
    const tiles t(dim, tokens, 3);
    const auto query = numbers::uniforms(6, dim, 2.0f);
    kv::query_block block(dim, 8);
    block.add(tokens - 1);
    block.select(0, 1);
    block.place(0, query, 1.0f);
    for (std::size_t at = 0; at < tokens; at += 16)
        block.run(t.at(at, 0, 16));
    std::vector<float> out(dim);
    block.finish(0, out.data());
    const auto truth = t.truth(query, 0, tokens);
    for (std::size_t d = 0; d < dim; ++d)
        CHECK(std::abs(static_cast<double>(out[d]) - truth[d]) < 4e-6);
}

TEST_CASE("scores far apart neither overflow nor lose the largest") {
    constexpr std::size_t dim = 16;
    tiles t(dim, 48, 4);
    for (const float power : {0x1p20f, 0x1p40f}) {
        std::vector<float> query(dim, power);
        kv::query_block block(dim, 8);
        block.add(47);
        block.select(0, 1);
        block.place(0, query, 1.0f);
        for (std::size_t at = 0; at < 48; at += 16)
            block.run(t.at(at, 0, 16));
        std::vector<float> out(dim);
        block.finish(0, out.data());
        const auto truth = t.truth(query, 0, 48);
        for (std::size_t d = 0; d < dim; ++d)
            CHECK(std::abs(static_cast<double>(out[d]) - truth[d]) < 1e-6);
    }
}

TEST_CASE("a block holds as many queries as its capacity") {
    kv::query_block block(16, 8);
    for (std::size_t q = 0; q < 8; ++q)
        block.add(q);
    CHECK_THROWS_AS(block.add(9), kv::contract_violation);
}
