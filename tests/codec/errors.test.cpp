// SPDX-License-Identifier: MIT
// Quantization errors of the codecs, compared with their formulas in double precision, and across channels and tokens.
#include <kvcache/codec/all.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

constexpr std::size_t dim = 128, tokens = 512;
using rows = std::vector<double>; // (tokens, dim)

// Nearly normal values: sums of twelve uniform ones.
rows normal_rows(std::uint64_t seed) {
    rows made(tokens * dim);
    for (std::size_t i = 0; i < made.size(); ++i)
        for (std::size_t k = 0; k < 12; ++k)
            made[i] += 0.5 * numbers::uniform(seed, i * 12 + k);
    return made;
}

struct number_set {
    const char* name;
    rows numbers;
};
std::vector<number_set> sets() {
    std::vector<number_set> made{
        {"normal", normal_rows(1)}, {"outlier channels", normal_rows(1)}, {"sizes", normal_rows(1)}};
    const rows more = normal_rows(2), size = normal_rows(3);
    for (std::size_t t = 0; t < tokens; ++t) {
        for (const std::size_t channel : {5u, 40u, 77u, 90u})
            made[1].numbers[t * dim + channel] = 30 + 20 * more[t * dim + channel];
        for (std::size_t d = 0; d < dim; ++d)
            made[2].numbers[t * dim + d] *= std::exp(size[d]);
    }
    for (auto& set : made)
        for (double& x : set.numbers)
            x = static_cast<float>(x);
    return made;
}

// Relative squared error of the values that `counts` selects.
double error_of(const rows& quantized, const rows& truth, const std::function<bool(std::size_t, std::size_t)>& counts) {
    double error = 0, size = 0;
    for (std::size_t i = 0; i < truth.size(); ++i)
        if (counts(i / dim, i % dim)) {
            error += (quantized[i] - truth[i]) * (quantized[i] - truth[i]);
            size += truth[i] * truth[i];
        }
    return error / size;
}
double error_of(const rows& quantized, const rows& truth) {
    return error_of(quantized, truth, [](std::size_t, std::size_t) { return true; });
}

// A policy's rows as keys and as values, transformed back.
struct both {
    rows keys, values;
};
template <class Policy>
both quantized(const Policy& policy, const rows& keys, const rows& values) {
    const kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = dim, .tokens = 64};
    const auto state = policy.open(shape);
    both made;
    kv::codec::residual_page exact(shape);
    kv::aligned_vector<std::byte> page(state.page_bytes());
    kv::aligned_vector<float> tile(kv::tile_tokens * dim);
    std::vector<float> key(dim), value(dim);
    for (std::size_t first = 0; first < tokens; first += shape.tokens) {
        exact.begin(0);
        for (std::uint32_t row = 0; row < shape.tokens; ++row) {
            for (std::size_t d = 0; d < dim; ++d) {
                key[d] = static_cast<float>(keys[(first + row) * dim + d]);
                value[d] = static_cast<float>(values[(first + row) * dim + d]);
            }
            exact.write(state, page, kv::layer_id{0}, row, key, value);
        }
        for (std::uint32_t t = 0; t < shape.tokens / kv::tile_tokens; ++t) {
            const kv::page_tile at{kv::layer_id{0}, kv::head_id{0}, t};
            const float* k = state.keys(page, at, tile);
            for (std::size_t lane = 0; lane < kv::tile_tokens; ++lane) {
                for (std::size_t d = 0; d < dim; ++d)
                    key[d] = k[d * kv::tile_tokens + lane];
                state.inverse_transform_key(key);
                made.keys.insert(made.keys.end(), key.begin(), key.end());
            }
            const float* v = state.values(page, at, tile);
            for (std::size_t lane = 0; lane < kv::tile_tokens; ++lane) {
                value.assign(v + lane * dim, v + lane * dim + dim);
                state.inverse_transform(value);
                made.values.insert(made.values.end(), value.begin(), value.end());
            }
        }
    }
    return made;
}

// Calls body(values of a group, their results) for groups of adjacent values in rows.
template <class Body>
rows by_groups(const rows& truth, std::size_t group, const Body& body) {
    rows made(truth.size());
    for (std::size_t i = 0; i < truth.size(); i += group)
        body(std::span(truth).subspan(i, group), std::span(made).subspan(i, group));
    return made;
}
double largest(std::span<const double> of) {
    return *kvcache::ranges::max_element(of, {}, [](double x) { return std::abs(x); });
}
rows int8_quantizer(const rows& truth, std::size_t group) {
    return by_groups(truth, group, [](auto from, auto to) {
        const double scale = std::abs(largest(from)) / 127;
        for (std::size_t i = 0; i < from.size(); ++i)
            to[i] = std::nearbyint(from[i] / scale) * scale;
    });
}
rows int4_quantizer(const rows& truth) {
    return by_groups(truth, 32, [](auto from, auto to) {
        const double scale = largest(from) / -8;
        for (std::size_t i = 0; i < from.size(); ++i)
            to[i] = std::clamp(std::nearbyint(from[i] / scale), -8.0, 7.0) * scale;
    });
}
rows per_channel_quantizer(const rows& truth, std::size_t group) {
    rows made(truth.size());
    for (std::size_t first = 0; first < tokens; first += group)
        for (std::size_t d = 0; d < dim; ++d) {
            double least = 1e300, most = -1e300;
            for (std::size_t t = first; t < first + group; ++t) {
                least = std::min(least, truth[t * dim + d]);
                most = std::max(most, truth[t * dim + d]);
            }
            for (std::size_t t = first; t < first + group; ++t)
                made[t * dim + d] =
                    std::nearbyint((truth[t * dim + d] - least) / (most - least) * 15) * (most - least) / 15 + least;
        }
    return made;
}

} // namespace

TEST_CASE("codecs have the errors of their formulas in double precision, within three in a hundred, or less") {
    for (const auto& set : sets()) {
        CAPTURE(set.name);
        const auto check = [&](const char* name, const auto& policy, const rows& quantizer, double least) {
            CAPTURE(name);
            const both got = quantized(policy, set.numbers, set.numbers);
            const double want = error_of(quantizer, set.numbers);
            for (const rows* side : {&got.keys, &got.values}) {
                CHECK(error_of(*side, set.numbers) <= 1.03 * want);
                CHECK(error_of(*side, set.numbers) >= least * want);
            }
        };
        check("int8", kv::codec::int8{}, int8_quantizer(set.numbers, dim), 0.97);
        check("int8_grouped", kv::codec::int8_grouped{}, int8_quantizer(set.numbers, 32), 0.97);
        check("int4", kv::codec::int4{}, int4_quantizer(set.numbers), 0.97);
        check("int4_per_channel", kv::codec::int4_per_channel{}, per_channel_quantizer(set.numbers, 32),
              0.8); // fitted to its codes
        check("int4_per_channel over 64", kv::codec::int4_per_channel{.group = 64},
              per_channel_quantizer(set.numbers, 64), 0.8);
        const both turned = quantized(kv::codec::hadamard<kv::codec::int4>{}, set.numbers, set.numbers);
        CHECK(error_of(turned.keys, set.numbers) <= 0.0075);
        CHECK(error_of(turned.values, set.numbers) <= 0.0075);
        // The error of 32 levels for a normal distribution is 0.0025; rows that a Hadamard matrix mixed have less.
        const both levels = quantized(kv::codec::codebook<5>{}, set.numbers, set.numbers);
        for (const rows* side : {&levels.keys, &levels.values}) {
            CHECK(error_of(*side, set.numbers) <= 0.0026);
            CHECK(error_of(*side, set.numbers) >= 0.0018);
        }
    }
}

TEST_CASE("an outlier channel of keys and an outlier token of values distinguish the right quantization axes from "
          "wrong ones") {
    // A channel that is large at every token, and a token that is large in every channel. Each degrades the values that
    // share its scale. Compares the error of the others with and without the outlier.
    constexpr std::size_t channel = 37, token = 75;
    const rows calm = normal_rows(5);
    rows keys = calm, values = calm;
    for (std::size_t t = 0; t < tokens; ++t)
        keys[t * dim + channel] += 60;
    for (std::size_t d = 0; d < dim; ++d)
        values[token * dim + d] *= 60;
    const auto check = [&](const char* name, const auto& policy, bool right_keys, bool right_values) {
        CAPTURE(name);
        const both with = quantized(policy, keys, values), without = quantized(policy, calm, calm);
        const auto others = [&](std::size_t t, std::size_t d) { return t != token && d != channel; };
        const double spoilt_keys = error_of(with.keys, keys, others) / error_of(without.keys, calm, others);
        const double spoilt_values = error_of(with.values, values, others) / error_of(without.values, calm, others);
        CAPTURE(spoilt_keys, spoilt_values);
        CHECK((right_keys ? spoilt_keys < 1.5 : spoilt_keys > 3.0));
        CHECK((right_values ? spoilt_values < 1.5 : spoilt_values > 3.0));
    };
    check("int4", kv::codec::int4{}, false, true);
    check("int4_per_channel", kv::codec::int4_per_channel{}, true, false);
    check("int4_per_channel over 64", kv::codec::int4_per_channel{.group = 64}, true, false);
    check("split, the right way round", kv::codec::mixed_kv<kv::codec::int4_per_channel, kv::codec::int4>{}, true,
          true);
    check("split, the wrong way round", kv::codec::mixed_kv<kv::codec::int4, kv::codec::int4_per_channel>{}, false,
          false);
    check("rotated int4", kv::codec::hadamard<kv::codec::int4>{}, false, true);
    check("rotated channels", kv::codec::hadamard<kv::codec::int4_per_channel>{}, true, false);
    check("rotated both",
          kv::codec::mixed_kv<kv::codec::hadamard<kv::codec::int4_per_channel>, kv::codec::hadamard<kv::codec::int4>>{},
          true, true);
    check("codebook of 4 bits", kv::codec::codebook<4>{}, false, true);
}

TEST_CASE("the errors of deltas are those of the differences between rows, and do not add up in a group") {
    // A random walk: each row is the row before and a normal step.
    rows walk = normal_rows(7), steps = walk;
    for (std::size_t i = dim; i < walk.size(); ++i)
        walk[i] += walk[i - dim];
    const auto squares = [](const rows& of, const rows& other, std::size_t first, std::size_t last) {
        double all = 0; // of the differences in rows [first, last) of each group of 64
        for (std::size_t i = 0; i < of.size(); ++i)
            if (i / dim % 64 >= first && i / dim % 64 < last)
                all += (of[i] - other[i]) * (of[i] - other[i]);
        return all / static_cast<double>(last - first);
    };
    for (double& x : walk)
        x = static_cast<float>(x);
    const both got = quantized(kv::codec::delta<3>{}, walk, walk);
    const double step = squares(steps, rows(steps.size()), 1, 64);
    for (const rows* side : {&got.keys, &got.values}) {
        // The error of eight levels for a normal distribution is 0.0345; the error before a step is a part of it.
        CHECK(squares(*side, walk, 1, 64) <= 0.04 * step);
        CHECK(squares(*side, walk, 1, 64) >= 0.025 * step);
        CHECK(squares(*side, walk, 48, 64) <= 1.1 * squares(*side, walk, 1, 17));
        CHECK(squares(*side, walk, 0, 1) <= 1e-5 * squares(walk, rows(walk.size()), 0, 1));
    }
    CHECK(error_of(quantized(kv::codec::codebook<3>{}, walk, walk).keys, walk) >
          10 * error_of(quantized(kv::codec::delta<3>{}, walk, walk).keys, walk));
}
