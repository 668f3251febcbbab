// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

namespace detail {

// A page that is written and quantized, and its expected values.
template <codec_policy Policy>
class page_codec_trial {
public:
    page_codec_trial(const Policy& policy, page_shape shape, double tolerance, violations& broken)
        : shape_(shape),
          state_(policy.open(shape)),
          tolerance_(tolerance),
          truth_(std::size_t{2} * shape.layers * shape.kv_heads * shape.tokens * shape.head_dim),
          broken_(broken) {
        check_property(broken, state_.page_bytes() > 0, "a page has bytes");
        check_property(broken, !state_.name().empty() && state_.name() == policy.open(shape).name(),
                       "a codec has one name");
        check_property(broken, state_.shape() == shape, "a codec knows its pages' shape");
    }

    void run(choices& choose) {
        for (float& number : truth_)
            number = static_cast<float>(static_cast<std::int32_t>(choose.bits() >> 40) - (1 << 23)) * 0x1p-21f;
        turns();
        const auto page = quantized(choose, std::byte{0});
        compare(page);
        check_property(broken_, quantized(choose, std::byte{0xff}) == page,
                       "the bytes of a page depend on its rows alone, written in any order");
        one_head(page);
    }

private:
    static constexpr std::byte guard{0xa5};
    using bytes = aligned_vector<std::byte>;

    // Returns the key and the value of a row. (2, head_dim)
    [[nodiscard]] std::span<const float> row(std::uint32_t layer, std::uint32_t head, std::uint32_t at) const {
        const std::size_t width = std::size_t{2} * shape_.head_dim;
        return std::span(truth_).subspan(((std::size_t{layer} * shape_.kv_heads + head) * shape_.tokens + at) * width,
                                         width);
    }

    // Writes full-precision rows in random order and returns the page they are quantized into, which was filled with
    // `filler`.
    [[nodiscard]] bytes quantized(choices& choose, std::byte filler) {
        rows_.emplace_back(shape_);
        codec::residual_page& rows = rows_.back();
        rows.begin(0);
        bytes page(state_.page_bytes() + 64, guard);
        const auto own = std::span(page).first(state_.page_bytes());
        ranges::fill(own, filler);
        std::vector<std::uint32_t> order(shape_.tokens);
        std::iota(order.begin(), order.end(), 0u);
        for (std::size_t i = order.size(); i > 1; --i)
            std::swap(order[i - 1], order[choose.below(i)]);
        std::vector<float> keys(std::size_t{shape_.kv_heads} * shape_.head_dim), values(keys.size());
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
            for (const std::uint32_t at : order) {
                for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
                    const auto numbers = row(layer, head, at);
                    ranges::copy(numbers.first(shape_.head_dim),
                                 keys.begin() + static_cast<std::ptrdiff_t>(head * shape_.head_dim));
                    ranges::copy(numbers.last(shape_.head_dim),
                                 values.begin() + static_cast<std::ptrdiff_t>(head * shape_.head_dim));
                }
                rows.write(state_, own, layer_id{layer}, at, keys, values);
            }
        check_property(broken_, ranges::count(std::span(page).subspan(state_.page_bytes()), guard) == 64,
                       "nothing is written past a page");
        page.resize(state_.page_bytes());
        return page;
    }

    // Checks that a page decodes to the transformed keys and values, within the tolerance.
    void compare(const bytes& page) {
        const std::size_t dim = shape_.head_dim, width = padded_head_dim(dim);
        aligned_vector<float> keys(dim * tile_tokens), values(tile_tokens * width);
        std::vector<float> key(dim), value(dim);
        double size[2] = {}, error[2] = {};
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
            for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
                for (std::uint32_t at = 0; at < shape_.tokens; ++at) {
                    const page_tile tile{layer_id{layer}, head_id{head}, at / tile_tokens};
                    const float* k = state_.keys(page, tile, keys);
                    const float* v = state_.values(page, tile, values);
                    const auto numbers = row(layer, head, at);
                    ranges::copy(numbers.first(dim), key.begin());
                    ranges::copy(numbers.last(dim), value.begin());
                    state_.transform_key(key);
                    state_.transform_value(value);
                    for (std::size_t d = 0; d < dim; ++d) {
                        const double got[] = {k[d * tile_tokens + at % tile_tokens], v[at % tile_tokens * width + d]};
                        const double wanted[] = {key[d], value[d]};
                        for (std::size_t i = 0; i < 2; ++i) {
                            size[i] += wanted[i] * wanted[i];
                            error[i] += (got[i] - wanted[i]) * (got[i] - wanted[i]);
                        }
                    }
                }
        for (std::size_t i = 0; i < 2; ++i)
            check_property(broken_, std::sqrt(error[i]) <= tolerance_ * std::sqrt(size[i]),
                           "what is coded is read, within the tolerance");
    }

    // Checks that the transform preserves dot products of queries and keys, and is inverted for values.
    void turns() {
        const std::size_t dim = shape_.head_dim;
        const auto numbers = row(0, 0, 0);
        std::vector<float> a(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(dim)),
            b(numbers.begin() + static_cast<std::ptrdiff_t>(dim), numbers.end());
        const std::vector<float> value = b;
        const auto product = [&] { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); };
        const double before = product();
        state_.transform_key(a);
        state_.transform_key(b);
        check_property(broken_, std::abs(product() - before) <= 1e-4 * static_cast<double>(dim),
                       "turned queries and keys have the product they had");
        b = value;
        state_.transform_value(b);
        state_.inverse_transform(b);
        bool same = true;
        for (std::size_t d = 0; d < dim; ++d)
            same = same && std::abs(b[d] - value[d]) <= 1e-5f;
        check_property(broken_, same, "turned values are turned back");
    }

    // Checks that quantizing one head again leaves the others unchanged.
    void one_head(const bytes& page) {
        bytes other = page;
        const auto head = head_id{shape_.kv_heads - 1};
        state_.encode(other, layer_id{0}, head, rows_.front().bytes());
        check_property(broken_, other == page, "coding the same rows again changes nothing");
        const codec::residual_page none(shape_);
        state_.encode(other, layer_id{0}, head, none.bytes());
        const std::size_t each = state_.page_bytes() / (std::size_t{shape_.layers} * shape_.kv_heads);
        bool same = true;
        for (std::size_t i = 0; i < page.size(); ++i)
            same = same && (i / each == shape_.kv_heads - 1 || other[i] == page[i]);
        check_property(broken_, same, "coding a head leaves the others as they are");
    }

    page_shape shape_;
    decltype(std::declval<const Policy&>().open(page_shape{})) state_;
    double tolerance_;
    std::vector<float> truth_; // (layers, kv_heads, tokens, 2, head_dim)
    std::vector<codec::residual_page> rows_;
    violations& broken_;
};

// The values of one page after decoding: keys, then values, of each (layer, head, row).
template <row_writer State>
[[nodiscard]] std::vector<float> decoded(const State& state, page_shape shape, std::span<const std::byte> page) {
    const std::size_t width = padded_head_dim(shape.head_dim);
    aligned_vector<float> keys(std::size_t{shape.head_dim} * tile_tokens), values(tile_tokens * width);
    std::vector<float> numbers;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
        for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
            for (std::uint32_t row = 0; row < shape.tokens; ++row) {
                const page_tile tile{layer_id{layer}, head_id{head}, row / tile_tokens};
                const float* k = state.keys(page, tile, keys);
                const float* v = state.values(page, tile, values);
                for (std::size_t d = 0; d < shape.head_dim; ++d)
                    numbers.push_back(k[d * tile_tokens + row % tile_tokens]);
                for (std::size_t d = 0; d < shape.head_dim; ++d)
                    numbers.push_back(v[row % tile_tokens * width + d]);
            }
    return numbers;
}

[[nodiscard]] inline bool same_bits(std::span<const float> a, std::span<const float> b) {
    return ranges::equal(a, b,
                         [](float x, float y) { return bit_cast<std::uint32_t>(x) == bit_cast<std::uint32_t>(y); });
}

// A page that is written row by row, and its expected values.
template <codec_policy Policy>
class codec_trial {
public:
    codec_trial(const Policy& policy, page_shape shape, double tolerance, violations& broken)
        : shape_(shape),
          state_(policy.open(shape)),
          tolerance_(tolerance),
          page_(state_.page_bytes() + 64),
          truth_(std::size_t{2} * shape.layers * shape.kv_heads * shape.tokens * shape.head_dim),
          broken_(broken) {
        ranges::fill(std::span(page_).subspan(state_.page_bytes()), guard);
        check_property(broken, state_.page_bytes() > 0, "a page has bytes");
        check_property(broken, !state_.name().empty() && state_.name() == policy.open(shape).name(),
                       "a codec has one name");
    }

    void run(choices& choose) {
        for (std::uint32_t row = 0; row < shape_.tokens; ++row)
            write(row, choose);
        compare(0, truth_.size());
        for (std::size_t again = 6; again > 0; --again) { // rewrites a single row
            const auto before = decoded(state_, shape_, bytes());
            const auto row = static_cast<std::uint32_t>(choose.below(shape_.tokens));
            write(row, choose);
            const auto after = decoded(state_, shape_, bytes());
            for (std::size_t i = 0; i < truth_.size(); ++i)
                check_property(broken_, row_of(i) == row || same_bits({&before[i], 1}, {&after[i], 1}),
                               "a row that is written leaves its neighbours as they are");
        }
        compare(0, truth_.size());
        copies(choose.below(shape_.tokens + 1));
        for (const std::size_t rows : {0u, 1u, 15u, 16u})
            copies(rows);
        check_property(broken_, ranges::count(std::span(page_).subspan(state_.page_bytes()), guard) == 64,
                       "nothing is written past a page");
    }

private:
    static constexpr std::byte guard{0xa5};

    [[nodiscard]] std::span<std::byte> bytes() { return std::span(page_).first(state_.page_bytes()); }
    [[nodiscard]] std::size_t row_of(std::size_t number) const {
        return number / (std::size_t{2} * shape_.head_dim) % shape_.tokens;
    }

    [[nodiscard]] float number(choices& choose) const {
        if (tolerance_ == 0.0 && choose.one_in(8)) { // values that only an exact codec keeps
            constexpr float odd[] = {-0.0f, 1e-41f, -3.4028235e38f, 1.17549435e-38f};
            return odd[choose.below(4)];
        }
        return static_cast<float>(static_cast<std::int32_t>(choose.bits() >> 40) - (1 << 23)) * 0x1p-21f;
    }

    void write(std::uint32_t row, choices& choose) {
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
            for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
                const std::size_t at =
                    ((std::size_t{layer} * shape_.kv_heads + head) * shape_.tokens + row) * 2 * shape_.head_dim;
                const auto numbers = std::span(truth_).subspan(at, std::size_t{2} * shape_.head_dim);
                ranges::generate(numbers, [&] { return number(choose); });
                state_.encode(bytes(), {layer_id{layer}, head_id{head}, row}, numbers.first(shape_.head_dim),
                              numbers.last(shape_.head_dim));
            }
    }

    void compare(std::size_t first, std::size_t count) {
        const auto numbers = decoded(state_, shape_, bytes());
        const auto got = std::span(numbers).subspan(first, count);
        const auto wanted = std::span<const float>(truth_).subspan(first, count);
        if (tolerance_ == 0.0) {
            check_property(broken_, same_bits(got, wanted), "what is written is read, bit for bit");
            return;
        }
        for (std::size_t i = 0; i < count; ++i) // all values are between -4 and 4
            check_property(broken_, std::abs(double{got[i]} - double{wanted[i]}) <= 4 * tolerance_,
                           "what is written is read, within the tolerance");
    }

    void copies(std::size_t rows) {
        aligned_vector<std::byte> other(state_.page_bytes() + 64, guard);
        const auto target = std::span(other).first(state_.page_bytes());
        ranges::fill(target, std::byte{});
        state_.copy(bytes(), target, rows);
        const auto from = decoded(state_, shape_, bytes()), to = decoded(state_, shape_, target);
        for (std::size_t i = 0; i < truth_.size(); ++i)
            check_property(broken_, row_of(i) >= rows || same_bits({&from[i], 1}, {&to[i], 1}),
                           "copied rows read as before");
        check_property(broken_, ranges::count(std::span(other).subspan(state_.page_bytes()), guard) == 64,
                       "nothing is copied past a page");
    }

    page_shape shape_;
    decltype(std::declval<const Policy&>().open(page_shape{})) state_;
    double tolerance_;
    aligned_vector<std::byte> page_; // followed by a guard
    std::vector<float> truth_;       // (layers, kv_heads, tokens, 2, head_dim)
    violations& broken_;
};

} // namespace detail

/// Tests the required properties of a codec. A row codec with tolerance zero keeps every bit; otherwise the error of a
/// value is at most 4 * tolerance, for values from -4 to 4. For a page codec the root mean square error is at most
/// `tolerance` times the root mean square.
template <codec_policy Policy>
[[nodiscard]] violations codec_conformance(const Policy& policy, std::uint64_t seed, double tolerance) {
    violations broken;
    detail::choices choose(seed);
    if constexpr (page_writer<opened_by<Policy, page_shape>>) {
        for (const page_shape shape : {page_shape{1, 1, 16, 32}, page_shape{2, 3, 64, 32}, page_shape{3, 1, 8, 64},
                                       page_shape{1, 2, 80, 64}, page_shape{1, 1, 5, 32}})
            detail::page_codec_trial<Policy>(policy, shape, tolerance, broken).run(choose);
        return broken;
    } else {
        for (const page_shape shape : {page_shape{1, 1, 16, 16}, page_shape{2, 3, 64, 32}, page_shape{3, 1, 8, 64},
                                       page_shape{1, 2, 80, 48}, page_shape{1, 1, 5, 16}})
            detail::codec_trial<Policy>(policy, shape, tolerance, broken).run(choose);
        return broken;
    }
}

}}} // namespace kvcache::testing
