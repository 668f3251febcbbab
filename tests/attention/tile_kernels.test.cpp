// SPDX-License-Identifier: MIT
#include <kvcache/attention/tile_kernels.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache::detail;

namespace {

constexpr std::size_t lanes = kv::tile_tokens;

// Calls body.operator()<N>() for N = 1 to max_queries.
template <class Body>
void for_each_count(Body body) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (body.template operator()<I + 1>(), ...);
    }
    (std::make_index_sequence<max_queries>());
}

// Tiles to prefetch, as many as a call may reach.
std::array<kv::attention_tile, 4 * most_tiles> tiles_ahead(const std::vector<float>& numbers) {
    std::array<kv::attention_tile, 4 * most_tiles> made;
    made.fill({.ahead_keys = numbers.data(), .ahead_values = numbers.data()});
    return made;
}

// Scores of `Tiles` tiles, compared with chains and with doubles.
template <std::size_t N, std::size_t Tiles, bool Ahead>
void check_scores(std::size_t head_dim) {
    const auto queries = numbers::uniforms(head_dim, head_dim * N, 4.0f);
    const auto keys = numbers::uniforms(N, Tiles * head_dim * lanes, 2.0f);
    std::array<kv::attention_tile, Tiles> tiles;
    for (std::size_t t = 0; t < Tiles; ++t) // not in memory order
        tiles[t] = {.keys = &keys[(Tiles - 1 - t) * head_dim * lanes], .last = lanes};
    std::vector<float> found(N * most_tiles * lanes, 7.0f);
    const auto soon = tiles_ahead(keys);
    tile_fetch ahead(soon, head_dim);
    score<N, Tiles, Ahead>(queries.data(), head_dim, tiles.data(), found.data(), ahead);
    std::size_t other_bits = 0, far = 0, touched = 0;
    for (std::size_t i = 0; i < N; ++i)
        for (std::size_t t = 0; t < most_tiles; ++t)
            for (std::size_t lane = 0; lane < lanes; ++lane) {
                const float got = found[(i * most_tiles + t) * lanes + lane];
                if (t >= Tiles) {
                    touched += got != 7.0f;
                    continue;
                }
                float chain = 0.0f;
                double truth = 0.0, size = 0.0;
                for (std::size_t d = 0; d < head_dim; ++d) {
                    const float q = queries[d * N + i], k = tiles[t].keys[d * lanes + lane];
                    chain = std::fma(q, k, chain);
                    truth += double(q) * double(k);
                    size += std::abs(double(q) * double(k));
                }
                other_bits += !numbers::same_bits(got, chain);
                far += std::abs(double(got) - truth) > 1e-6 * size;
            }
    INFO(N << " queries, " << Tiles << " tiles, head_dim " << head_dim << (Ahead ? ", fetching" : ""));
    CHECK(other_bits == 0);
    CHECK(far == 0);
    CHECK(touched == 0);
}

// Four tiles of values, with some lanes in use and NaN in the others.
struct valued {
    std::size_t width;
    std::vector<float> values; // (tiles, 16, width)
    std::array<kv::attention_tile, most_tiles> tiles;

    valued(std::size_t w, std::array<std::pair<std::size_t, std::size_t>, most_tiles> used, bool backwards)
        : width(w), values(numbers::uniforms(w, most_tiles * lanes * w)) {
        for (std::size_t t = 0; t < most_tiles; ++t) {
            float* at = &values[(backwards ? most_tiles - 1 - t : t) * lanes * width];
            tiles[t] = {.values = at, .first = used[t].first, .last = used[t].second};
            for (std::size_t lane = 0; lane < lanes; ++lane)
                if (lane < tiles[t].first || lane >= tiles[t].last)
                    std::fill_n(at + lane * width, width, numbers::not_a_number);
        }
    }
    valued(const valued&) = delete;
};

template <std::size_t N, bool Ahead>
void check_values(const valued& of, const tile_weights& weights, std::size_t begin, std::size_t end,
                  std::size_t first) {
    const std::size_t stride = of.width + 5;
    const auto before = numbers::uniforms(N, N * stride);
    auto found = before;
    const auto soon = tiles_ahead(of.values);
    tile_fetch ahead(soon, of.width);
    add_values<N, Ahead>(std::span(of.tiles).subspan(begin, end - begin), of.width, weights.from(first, begin),
                         kv::rows_out{found.data(), stride}, ahead);
    std::size_t other_bits = 0, far = 0;
    for (std::size_t i = 0; i < N; ++i)
        for (std::size_t c = 0; c < stride; ++c) {
            float chain = before[i * stride + c];
            double truth = double(chain), size = std::abs(truth);
            for (std::size_t t = c < of.width ? begin : end; t < end; ++t) {
                if (weights.rescaled[t]) {
                    chain *= weights.rescale[first + i][t];
                    truth *= double(weights.rescale[first + i][t]);
                }
                for (std::size_t lane = of.tiles[t].first; lane < of.tiles[t].last; ++lane) {
                    const float w = weights.lanes[first + i][t][lane], v = of.tiles[t].values[lane * of.width + c];
                    chain = std::fma(w, v, chain);
                    truth += double(w) * double(v);
                    size += std::abs(double(w) * double(v));
                }
            }
            other_bits += !numbers::same_bits(found[i * stride + c], chain);
            far += !(std::abs(double(found[i * stride + c]) - truth) <= 1e-6 * size);
        }
    INFO(N << " queries from " << first << ", tiles " << begin << " to " << end << ", width " << of.width
           << (Ahead ? ", fetching" : ""));
    CHECK(other_bits == 0);
    CHECK(far == 0);
}

tile_weights some_weights(std::uint64_t seed, unsigned rescaled) {
    tile_weights made;
    for (std::size_t i = 0; i < max_queries; ++i)
        for (std::size_t t = 0; t < most_tiles; ++t) {
            for (std::size_t lane = 0; lane < lanes; ++lane)
                made.lanes[i][t][lane] = std::fabs(numbers::uniform(seed, (i * most_tiles + t) * lanes + lane));
            made.rescaled[t] = (rescaled >> t & 1) != 0;
            made.rescale[i][t] = made.rescaled[t] ? std::fabs(numbers::uniform(seed + 1, i * most_tiles + t)) : 1.0f;
        }
    return made;
}

} // namespace

TEST_CASE("a score is one fma chain over head_dim, for any number of queries and tiles together") {
    for (const std::size_t head_dim : {1u, 16u, 24u, 64u, 128u})
        for_each_count([&]<std::size_t N> {
            constexpr std::size_t together = tiles_together(N);
            check_scores<N, 1, false>(head_dim);
            check_scores<N, 1, true>(head_dim);
            check_scores<N, together, false>(head_dim);
            check_scores<N, together, true>(head_dim);
        });
}

TEST_CASE("values are added lane by lane, those in use alone, whatever lies together") {
    using range = std::pair<std::size_t, std::size_t>;
    const std::array<range, most_tiles> uses[] = {
        {range{0, 16}, {0, 16}, {0, 16}, {0, 16}}, {range{3, 16}, {0, 16}, {0, 16}, {0, 5}},
        {range{0, 1}, {15, 16}, {7, 9}, {2, 13}},  {range{0, 16}, {4, 16}, {0, 9}, {0, 16}},
        {range{5, 5}, {0, 16}, {0, 0}, {0, 16}},
    };
    for (const std::size_t width : {16u, 32u, 48u, 112u, 128u})
        for (const auto& used : uses)
            for (const bool backwards : {false, true}) {
                const valued of(width, used, backwards);
                for (const unsigned rescaled : {0u, 1u, 4u, 15u}) {
                    const tile_weights weights = some_weights(width, rescaled);
                    for_each_count([&]<std::size_t N> {
                        check_values<N, false>(of, weights, 0, most_tiles, 0);
                        check_values<N, true>(of, weights, 0, most_tiles, 0);
                        check_values<N, false>(of, weights, 1, 3, max_queries - N);
                    });
                }
            }
}
