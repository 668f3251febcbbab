// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// One step of a causal convolution of each channel by itself, over the last taps tokens:
///
///     out[c] = bias[c] + sum over j of weights[j][c] * x[j][c],  j ascending, x[taps - 1] the new token's
///
/// Without biases they are 0. `state` has the inputs of the taps - 1 tokens before, oldest first, and has those after
/// this one then. `x` may be `out`. weights: (taps, channels), state: (taps - 1, channels). Requires: taps >= 1.
inline void causal_convolution(std::span<const float> weights, std::span<const float> bias, std::span<float> state,
                               std::span<const float> x, std::span<float> out) {
    const std::size_t channels = x.size(), before = state.size() / std::max<std::size_t>(channels, 1);
    expects(weights.size() == (before + 1) * channels, "a convolution has a weight for each tap and channel");
    detail::by_sixteen(channels, [&](std::size_t c, std::size_t n) {
        f32x16 sum = bias.empty() ? f32x16::zero() : f32x16::load_up_to(bias.data() + c, n);
        const f32x16 now = f32x16::load_up_to(x.data() + c, n);
        for (std::size_t j = 0; j < before; ++j) {
            float* const at = state.data() + j * channels + c;
            sum = fma(f32x16::load_up_to(weights.data() + j * channels + c, n), f32x16::load_up_to(at, n), sum);
            (j + 1 < before ? f32x16::load_up_to(at + channels, n) : now).store_up_to(at, n);
        }
        fma(f32x16::load_up_to(weights.data() + before * channels + c, n), now, sum).store_up_to(out.data() + c, n);
    });
}

/// Factors of a step of the gated delta rule.
struct delta_step {
    float decay = 1.0F; ///< Of the state.
    float beta = 1.0F;  ///< How much of the difference is learned.
};

/// One step of the gated delta rule of a head (Yang et al. 2025, Gated DeltaNet):
///
///     S = decay S;  S += k (beta (v - S' k))';  out = S' q
///
/// Each number of S and of the sums over keys is computed in ascending order of keys: bits do not depend on the vector
/// width. state: (keys, values), q, k: (keys), v, out: (values). `out` may be `v`.
inline void gated_delta_step(std::span<float> state, std::span<const float> q, std::span<const float> k,
                             std::span<const float> v, const delta_step& by, std::span<float> out) {
    const std::size_t values = v.size();
    expects(state.size() == q.size() * values && k.size() == q.size(), "a state has a row of values for each key");
    const f32x16 keeps = f32x16::broadcast(by.decay), learns = f32x16::broadcast(by.beta);
    const auto step = [&](auto count, std::size_t c, std::size_t n) { // `count` vectors, the last one of n lanes
        constexpr std::size_t vectors = decltype(count)::value;
        const auto lanes = [&](std::size_t i) { return i + 1 < vectors ? std::size_t{16} : n; };
        f32x16 known[vectors], change[vectors], sum[vectors];
        KVCACHE_UNROLL for (std::size_t i = 0; i < vectors; ++i) known[i] = sum[i] = f32x16::zero();
        for (std::size_t r = 0; r < k.size(); ++r) {
            float* const row = state.data() + r * values + c;
            const f32x16 key = f32x16::broadcast(k[r]);
            KVCACHE_UNROLL for (std::size_t i = 0; i < vectors; ++i) {
                const f32x16 kept = f32x16::load_up_to(row + 16 * i, lanes(i)) * keeps;
                kept.store_up_to(row + 16 * i, lanes(i));
                known[i] = fma(key, kept, known[i]);
            }
        }
        KVCACHE_UNROLL for (std::size_t i = 0; i < vectors; ++i) change[i] =
            (f32x16::load_up_to(v.data() + c + 16 * i, lanes(i)) - known[i]) * learns;
        for (std::size_t r = 0; r < k.size(); ++r) {
            float* const row = state.data() + r * values + c;
            const f32x16 key = f32x16::broadcast(k[r]), query = f32x16::broadcast(q[r]);
            KVCACHE_UNROLL for (std::size_t i = 0; i < vectors; ++i) {
                const f32x16 now = fma(key, change[i], f32x16::load_up_to(row + 16 * i, lanes(i)));
                now.store_up_to(row + 16 * i, lanes(i));
                sum[i] = fma(query, now, sum[i]);
            }
        }
        KVCACHE_UNROLL for (std::size_t i = 0; i < vectors; ++i) sum[i].store_up_to(out.data() + c + 16 * i, lanes(i));
    };
    std::size_t c = 0;
    for (; c + 64 <= values; c += 64)
        step(std::integral_constant<std::size_t, 4>(), c, 16);
    for (; c < values; c += 16)
        step(std::integral_constant<std::size_t, 1>(), c, std::min<std::size_t>(16, values - c));
}

/// Factors of a step of a selective state space.
struct selective_step {
    float decay = 1.0F; ///< Of the state.
    float time = 1.0F;  ///< Of what is added to it.
    float skip = 0.0F;  ///< Of the input in the output.
};

/// One step of a selective state space of a head (Dao & Gu 2024, Mamba-2):
///
///     S = decay S + (time k) x';  out = S' q + skip x
///
/// in the order of gated_delta_step. state: (keys, values), q, k: (keys), x, out: (values). `out` may be `x`.
inline void selective_state_step(std::span<float> state, std::span<const float> q, std::span<const float> k,
                                 std::span<const float> x, const selective_step& by, std::span<float> out) {
    const std::size_t values = x.size();
    expects(state.size() == q.size() * values && k.size() == q.size(), "a state has a row of values for each key");
    const f32x16 keeps = f32x16::broadcast(by.decay);
    detail::by_sixteen(values, [&](std::size_t c, std::size_t n) {
        const f32x16 now = f32x16::load_up_to(x.data() + c, n);
        f32x16 sum = now * f32x16::broadcast(by.skip);
        for (std::size_t r = 0; r < k.size(); ++r) {
            float* const at = state.data() + r * values + c;
            const f32x16 next = fma(f32x16::broadcast(by.time * k[r]), now, f32x16::load_up_to(at, n) * keeps);
            next.store_up_to(at, n);
            sum = fma(f32x16::broadcast(q[r]), next, sum);
        }
        sum.store_up_to(out.data() + c, n);
    });
}

/// factor * x / sqrt(sum(x^2) + epsilon), into `out`, which may be `x`. The sum is that of rms_norm. (columns)
inline void l2_norm(std::span<const float> x, float epsilon, float factor, std::span<float> out) {
    f32x16 squares = f32x16::zero();
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 v = f32x16::load_up_to(x.data() + i, n);
        squares = fma(v, v, squares);
    });
    scale(x, factor / std::sqrt(sum(squares) + epsilon), out);
}

/// silu of each number, in place. (columns)
inline void silu(std::span<float> x) {
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        silu(f32x16::load_up_to(x.data() + i, n)).store_up_to(x.data() + i, n);
    });
}

/// x * y, into `out`, which may be either. (columns)
inline void multiply(std::span<const float> x, std::span<const float> y, std::span<float> out) {
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        (f32x16::load_up_to(x.data() + i, n) * f32x16::load_up_to(y.data() + i, n)).store_up_to(out.data() + i, n);
    });
}

/// 1 / (1 + e^-x).
[[nodiscard]] inline float sigmoid(float x) noexcept {
    return 1.0F / (1.0F + exp_one(-x));
}

/// log(1 + e^x); x above 20, where the two are the same to within 2e-9.
[[nodiscard]] inline float softplus(float x) noexcept {
    return x > 20.0F ? x : static_cast<float>(portable_math::log(1.0 + static_cast<double>(exp_one(x))));
}

/// x times sigmoid(gate), in place. (columns)
inline void gate_by_sigmoid(std::span<const float> gate, std::span<float> x) {
    const f32x16 one = f32x16::broadcast(1.0F);
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 share = one / (one + exp(-f32x16::load_up_to(gate.data() + i, n)));
        (f32x16::load_up_to(x.data() + i, n) * share).store_up_to(x.data() + i, n);
    });
}

}} // namespace kvcache
