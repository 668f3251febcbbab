// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cuda/attention_table.hpp>
#include <kvcache/cuda/device_math.hpp>
#include <kvcache/cuda/page_layout.hpp>
#include <kvcache/cuda/rope_table.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Rotates each query by its position minus the base of the keys that it reads, once for each run of entries with one
/// base, and scales it for attention. For int8 keys it also writes the query as int16 with a scale; a query that
/// contains NaN gets a NaN scale. A block processes one query head of one run.
struct prepare_queries {
    static constexpr unsigned threads = 64;

    const std::byte* queries = nullptr;  ///< (sequences, heads, head_dim), of `format`
    row_format format = row_format::f32; ///< f32, f16 or bf16
    const rotation_run* runs = nullptr;  ///< (runs)
    rope_table steps = {};
    std::uint32_t run_count = 0;
    std::uint32_t heads = 1;
    std::uint32_t head_dim = 0;
    float multiplier = 1.0f;       ///< The scale of scores, over log(2).
    float* transformed = nullptr;  ///< (runs, heads, head_dim)
    std::int16_t* codes = nullptr; ///< The same, or null
    float* scales = nullptr;       ///< (runs, heads), or null

    [[nodiscard]] std::uint64_t blocks() const noexcept { return std::uint64_t{run_count} * heads; }
    [[nodiscard]] std::size_t shared_bytes() const noexcept { return (head_dim + threads) * sizeof(float); }

    /// Largest integer of a quantized query: head_dim products of 127 and it fit an int32.
    [[nodiscard]] static KVCACHE_HOST_DEVICE float largest_code(std::uint32_t head_dim) noexcept {
        const std::uint32_t fits = 2147483647u / 127u / (head_dim + 1);
        return static_cast<float>(fits < 32767u ? fits : 32767u);
    }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        const std::uint64_t row = group.block(); // index of the rotated query
        const rotation_run run = runs[row / heads];
        const std::uint64_t from = (std::uint64_t{run.sequence} * heads + row % heads) * head_dim;
        float* const own = group.template shared<float>(0, head_dim);
        float* const most = group.template shared<float>(head_dim * sizeof(float), threads);

        group.each([&](unsigned thread) {
            float largest = 0.0f;
            const std::uint32_t pairs = steps.turns == nullptr ? 0 : steps.half;
            for (std::uint32_t i = thread; i < head_dim; i += threads) {
                if (i >= pairs && i < 2 * pairs)
                    continue; // rotated with its partner
                const float x = number(from + i);
                if (i >= pairs) {
                    own[i] = times(x, multiplier);
                } else {
                    const turn by = steps.at(run.turn, i);
                    const float y = number(from + i + pairs);
                    const auto cosine = static_cast<float>(by.cosine), sine = static_cast<float>(by.sine);
                    own[i] = times(fused(x, cosine, -times(y, sine)), multiplier);
                    own[i + pairs] = times(fused(y, cosine, times(x, sine)), multiplier);
                    largest = larger_or_none(size_of(own[i + pairs]), largest);
                }
                largest = larger_or_none(size_of(own[i]), largest);
            }
            most[thread] = largest;
        });

        group.alone([&](unsigned thread) {
            for (std::uint32_t i = thread; i < head_dim; i += threads)
                transformed[row * head_dim + i] = own[i];
            if (codes == nullptr)
                return;
            float largest = 0.0f;
            for (unsigned i = 0; i < threads; ++i)
                largest = larger_or_none(most[i], largest);
            const float whole = largest_code(head_dim);
            const float inverse = largest > 1e-30f ? divided(whole, largest) : 0.0f; // smaller magnitudes count as zero
            for (std::uint32_t i = thread; i < head_dim; i += threads) {
                const float code = nearest(times(own[i], inverse));
                codes[row * head_dim + i] =
                    code >= -whole && code <= whole ? static_cast<std::int16_t>(code) : std::int16_t{0};
            }
            if (thread == 0)
                scales[row] = divided(largest, whole);
        });
    }

private:
    [[nodiscard]] KVCACHE_HOST_DEVICE float number(std::uint64_t at) const noexcept {
        if (format == row_format::f32)
            return reinterpret_cast<const float*>(queries)[at];
        const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(queries)[at];
        return format == row_format::bf16 ? from_bf16(bits) : from_f16(bits);
    }
};

}}} // namespace kvcache::cuda
