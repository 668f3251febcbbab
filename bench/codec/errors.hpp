// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/any_codec.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/memory.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "../support/machine.hpp"
#include "sets.hpp"

namespace bench {

/// The errors, size and speed of a codec on a set of rows, as keys and as values.
struct coding_error {
    double bits_per_value = 0.0;
    double keys = 0.0;        ///< Squared error of keys over the sum of squares.
    double values = 0.0;      ///< Squared error of values over the sum of squares.
    double products = 0.0;    ///< RMS error of q.k over the RMS of q.k, for normal q.
    double encode_gbps = 0.0; ///< 10^9 float32 bytes encoded per second.
    double decode_gbps = 0.0; ///< 10^9 float32 bytes decoded per second.
};

/// Encodes the rows of a set, in whole pages of one head, as keys and values at once, and measures the decoded rows.
/// Rows after a head's last whole page are skipped.
template <class Policy>
[[nodiscard]] coding_error measure(const Policy& policy, const number_set& set, std::uint32_t page_tokens) {
    namespace kv = kvcache;
    const auto dim = static_cast<std::uint32_t>(set.dim);
    const kv::page_shape shape{1, 1, dim, page_tokens};
    const auto state = policy.open(shape);
    const std::size_t each = set.tokens() / page_tokens, pages = set.heads * each, width = kv::padded_head_dim(dim);
    const auto first_row = [&](std::size_t p) { return p / each * set.tokens() + p % each * page_tokens; };
    kv::aligned_vector<std::byte> encoded(pages * state.page_bytes());
    const auto page_of = [&](std::size_t p) {
        return std::span(encoded).subspan(p * state.page_bytes(), state.page_bytes());
    };
    coding_error made;
    made.bits_per_value = static_cast<double>(state.page_bytes()) * 8 / (2.0 * dim * page_tokens);
    const double bytes = static_cast<double>(pages * page_tokens * dim * 2 * sizeof(float));

    kv::codec::residual_page rows(shape);
    double seconds = 1e9;
    for (int again = 0; again < 3; ++again) {
        double spent = 0.0;
        for (std::size_t p = 0; p < pages; ++p) {
            rows.begin(0);
            for (std::uint32_t row = 0; row < page_tokens; ++row) {
                const std::span numbers(set.numbers.data() + (first_row(p) + row) * dim, dim);
                rows.write(state, page_of(p), kv::layer_id{0}, row, numbers, numbers);
            }
            const stopwatch watch; // encoding only
            state.encode(page_of(p), kv::layer_id{0}, kv::head_id{0}, rows.bytes());
            spent += watch.seconds();
        }
        seconds = std::min(seconds, spent);
    }
    made.encode_gbps = bytes * 1e-9 / seconds;

    kv::aligned_vector<float> keys(std::size_t{dim} * kv::tile_tokens), values(kv::tile_tokens * width);
    const auto for_tiles = [&](auto body) {
        for (std::size_t p = 0; p < pages; ++p)
            for (std::uint32_t t = 0; t < page_tokens / kv::tile_tokens; ++t) {
                const kv::page_tile at{kv::layer_id{0}, kv::head_id{0}, t};
                body(first_row(p) + t * kv::tile_tokens, state.keys(page_of(p), at, keys),
                     state.values(page_of(p), at, values));
            }
    };
    seconds = 1e9;
    for (int again = 0; again < 3; ++again) {
        float sum = 0.0f;
        const stopwatch watch;
        for_tiles([&](std::size_t, const float* k, const float* v) { sum += k[0] + v[0]; });
        volatile float sink = sum;
        static_cast<void>(sink);
        seconds = std::min(seconds, watch.seconds());
    }
    made.decode_gbps = bytes * 1e-9 / seconds;

    std::mt19937_64 dice(7);
    std::normal_distribution<double> normal;
    std::vector<float> query(dim), turned(dim), key(dim), value(dim);
    double size = 0.0, product_size = 0.0;
    for_tiles([&](std::size_t first, const float* k, const float* v) {
        for (float& x : query)
            x = static_cast<float>(normal(dice));
        turned = query;
        state.transform_key(turned);
        for (std::size_t lane = 0; lane < kv::tile_tokens; ++lane) {
            const float* truth = set.numbers.data() + (first + lane) * dim;
            key.assign(truth, truth + dim);
            state.transform_key(key);
            value.assign(v + lane * width, v + lane * width + dim);
            state.inverse_transform(value);
            double wanted = 0.0, got = 0.0;
            for (std::size_t d = 0; d < dim; ++d) {
                const double x = truth[d], quantized_key = k[d * kv::tile_tokens + lane];
                size += x * x;
                made.keys += (quantized_key - key[d]) * (quantized_key - key[d]);
                made.values += (value[d] - x) * (value[d] - x);
                wanted += query[d] * x;
                got += turned[d] * quantized_key;
            }
            made.products += (got - wanted) * (got - wanted);
            product_size += wanted * wanted;
        }
    });
    made.keys /= size;
    made.values /= size;
    made.products = std::sqrt(made.products / product_size);
    return made;
}

} // namespace bench
