// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/testing/page_codec_conformance.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

namespace detail {

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
    return std::ranges::equal(
        a, b, [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y); });
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
        std::ranges::fill(std::span(page_).subspan(state_.page_bytes()), guard);
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
        check_property(broken_, std::ranges::count(std::span(page_).subspan(state_.page_bytes()), guard) == 64,
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
                std::ranges::generate(numbers, [&] { return number(choose); });
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
        std::ranges::fill(target, std::byte{});
        state_.copy(bytes(), target, rows);
        const auto from = decoded(state_, shape_, bytes()), to = decoded(state_, shape_, target);
        for (std::size_t i = 0; i < truth_.size(); ++i)
            check_property(broken_, row_of(i) >= rows || same_bits({&from[i], 1}, {&to[i], 1}),
                           "copied rows read as before");
        check_property(broken_, std::ranges::count(std::span(other).subspan(state_.page_bytes()), guard) == 64,
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
