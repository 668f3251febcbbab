// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/recurrence.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/activations.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/host_attention.hpp>
#include <kvcache/model/linear.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Rows of one sequence in a batch, and its states.
struct recurrent_rows {
    std::size_t first = 0, count = 0;
    slice_states states = {};
};

/// Layers that keep a state of all tokens so far. A state depends on the tokens alone: it advances token by token, in
/// one order of operations, whatever is computed with it in a batch.
///
///     short_convolution (LFM2, Liquid AI 2025):  B, C, x = input(h);  output(C * convolution(B * x))
///     gated_delta (Yang et al. 2025, as in Qwen3.5):  q, k, v = silu(convolution(q, k, v of input(h))), heads of q and
///         k of length 1, q / sqrt(key_dim); of each head of v  o = gated_delta_step(q, k, v, decay, beta),
///         decay = exp(-exp(A) softplus(a + time bias)), beta = sigmoid(b);  output(norm(o) * silu(z))
///     mamba2 (Dao & Gu 2024, as in Granite 4):  x, B, C = silu(convolution(x, B, C of input(h))); of each head
///         o = selective_state_step(C, t B, x, exp(-exp(A) t), skip), t = softplus(time + time bias);
///         output(norm(o * silu(z))), the norm over the heads of a group
class recurrent_mixer {
public:
    explicit recurrent_mixer(const model_config& config)
        : config_(config),
          of_(config.recurrence),
          in_(std::max<std::size_t>(config.mixer_inputs(), 1)),
          made_(std::max<std::size_t>(config.mixer_outputs(), 1)) {}

    /// Ensures memory for `rows` rows. Allocates only if it grows.
    void make_room(std::size_t rows) {
        if (config_.mixer_inputs() == 0)
            return;
        in_.make_room(rows);
        made_.make_room(rows);
    }

    /// A recurrent layer: its weights, and its number among those.
    struct layer {
        const block_weights& weights;
        std::size_t index = 0;
    };

    /// Computes out = mixer(x) of a layer for the first `rows` rows, which are those of `parts`;
    /// out may be x. Advances the states. Requires: room for them. (rows, hidden)
    void run(const layer& of, const activations& x, std::span<const recurrent_rows> parts, activations& out,
             thread_pool& threads, int8_block_rows& scratch) {
        const block_weights& w = of.weights;
        const std::size_t rows = parts.empty() ? 0 : parts.back().first + parts.back().count;
        w.mixer_input.apply(x.in(rows), in_.out(), threads, scratch);
        layer_ = of.index * config_.state_floats();
        for (const recurrent_rows& part : parts)
            require(part.states.after.size() >= (layer_ + config_.state_floats()) * sizeof(float),
                    "rows of a model with recurrent layers come with memory for their states");
        for (const recurrent_rows& part : parts)
            if (config_.mixer == layer_mixer::short_convolution)
                convolve(w, part, threads);
            else if (config_.mixer == layer_mixer::gated_delta)
                recur(w, part, threads);
            else
                select(w, part, threads);
        w.mixer_output.apply(made_.in(rows), out.out(), threads, scratch);
    }

private:
    // The floats [at, at + count) of this layer's state, in a slice's memory.
    [[nodiscard]] std::span<float> part_of(std::span<std::byte> states, std::size_t at, std::size_t count) const {
        return {reinterpret_cast<float*>(states.data()) + layer_ + at, count};
    }
    // Begins with the state before a slice: copied to where that after it will be.
    [[nodiscard]] std::span<float> begin(const slice_states& of, std::size_t at, std::size_t count) const {
        const auto to = part_of(of.after, at, count);
        const std::size_t from = (layer_ + at) * sizeof(float);
        if (of.before.empty())
            std::fill(to.begin(), to.end(), 0.0F);
        else if (of.before.data() != of.after.data())
            std::memcpy(to.data(), of.before.data() + from, to.size() * sizeof(float));
        return to;
    }
    // Runs body(row, state) for the rows of a slice with a part of its state, and copies the state where it is wanted.
    template <class Body>
    void advance(const recurrent_rows& part, std::size_t at, std::size_t count, Body body) const {
        const auto state = begin(part.states, at, count);
        auto copy = part.states.copies.begin();
        for (std::size_t i = 0; i < part.count; ++i) {
            body(part.first + i, state);
            for (; copy != part.states.copies.end() && copy->rows == i + 1; ++copy)
                std::memcpy(part_of(copy->to, at, count).data(), state.data(), count * sizeof(float));
        }
    }

    // The convolution of a slice, whose channels are dealt to the threads in blocks, as states and weights have them.
    // `before(row, first channel, count)` gives its input, which the output replaces, and `after` has that too.
    template <class Before, class After>
    void convolve_channels(const block_weights& w, const recurrent_rows& part, std::size_t channels,
                           thread_pool& threads, Before before, After after) {
        const std::size_t taps = of_.taps, blocks = (channels + block_channels - 1) / block_channels;
        threads.parallel_for(
            blocks, part.count * channels * (taps + 8), [&](std::size_t begin_block, std::size_t end_block) {
                for (std::size_t b = begin_block; b < end_block; ++b) {
                    const std::size_t c = b * block_channels, n = std::min(block_channels, channels - c);
                    const auto weights = std::span(w.convolution).subspan(c * taps, n * taps);
                    const auto bias = w.convolution_bias.empty() ? std::span<const float>()
                                                                 : std::span(w.convolution_bias).subspan(c, n);
                    advance(part, c * (taps - 1), n * (taps - 1), [&](std::size_t row, std::span<float> state) {
                        const auto x = before(row, c, n);
                        causal_convolution(weights, bias, state, x, x);
                        after(row, c, n, x);
                    });
                }
            });
    }

    void convolve(const block_weights& w, const recurrent_rows& part, thread_pool& threads) {
        const std::size_t hidden = config_.hidden_size;
        const auto third = [&](std::size_t row, std::size_t which, std::size_t c, std::size_t n) {
            return in_.row(row).subspan(which * hidden + c, n);
        };
        convolve_channels(
            w, part, hidden, threads,
            [&](std::size_t row, std::size_t c, std::size_t n) {
                const auto x = third(row, 2, c, n);
                multiply(third(row, 0, c, n), x, x);
                return x;
            },
            [&](std::size_t row, std::size_t c, std::size_t n, std::span<const float> x) {
                multiply(third(row, 1, c, n), x, made_.row(row).subspan(c, n));
            });
    }

    void recur(const block_weights& w, const recurrent_rows& part, thread_pool& threads) {
        const std::size_t keys = of_.key_heads * of_.key_dim, values = of_.value_heads * of_.value_dim;
        const std::size_t channels = 2 * keys + values, convolved = channels * (of_.taps - 1);
        convolve_channels(
            w, part, channels, threads,
            [&](std::size_t row, std::size_t c, std::size_t n) { return in_.row(row).subspan(c, n); },
            [&](std::size_t, std::size_t, std::size_t, std::span<float> x) { silu(x); });
        const float shrink = 1.0F / std::sqrt(static_cast<float>(of_.key_dim));
        each_row(part, threads, 4 * channels, [&](std::span<float> row, std::size_t) {
            for (std::size_t head = 0; head < 2 * of_.key_heads; ++head) {
                const auto each = row.subspan(head * of_.key_dim, of_.key_dim);
                l2_norm(each, length_epsilon, head < of_.key_heads ? shrink : 1.0F, each);
            }
            for (std::size_t head = 0; head < of_.value_heads; ++head) {
                float& beta = row[channels + values + head];
                float& decay = row[channels + values + of_.value_heads + head];
                beta = sigmoid(beta);
                decay = exp_one(w.decay[head] * softplus(decay + w.time_bias[head]));
            }
        });
        const std::size_t size = of_.key_dim * of_.value_dim;
        threads.parallel_for(
            of_.value_heads, part.count * of_.value_heads * 4 * size, [&](std::size_t from, std::size_t end) {
                for (std::size_t head = from; head < end; ++head)
                    advance(part, convolved + head * size, size, [&](std::size_t at, std::span<float> state) {
                        const auto row = in_.row(at);
                        const std::size_t key = key_head_of(head) * of_.key_dim;
                        gated_delta_step(
                            state, row.subspan(key, of_.key_dim), row.subspan(keys + key, of_.key_dim),
                            row.subspan(2 * keys + head * of_.value_dim, of_.value_dim),
                            {row[channels + values + of_.value_heads + head], row[channels + values + head]},
                            made_.row(at).subspan(head * of_.value_dim, of_.value_dim));
                    });
            });
        each_row(part, threads, 8 * values, [&](std::span<float> row, std::size_t at) {
            for (std::size_t head = 0; head < of_.value_heads; ++head) {
                const auto each = made_.row(at).subspan(head * of_.value_dim, of_.value_dim);
                rms_norm(each, w.mixer_norm, config_.rms_norm_eps, each);
                gated_silu(row.subspan(channels + head * of_.value_dim, of_.value_dim), each, each);
            }
        });
    }

    void select(const block_weights& w, const recurrent_rows& part, thread_pool& threads) {
        const std::size_t keys = of_.key_heads * of_.key_dim, values = of_.value_heads * of_.value_dim;
        const std::size_t channels = 2 * keys + values, convolved = channels * (of_.taps - 1),
                          steps = values + channels;
        convolve_channels(
            w, part, channels, threads,
            [&](std::size_t row, std::size_t c, std::size_t n) { return in_.row(row).subspan(values + c, n); },
            [&](std::size_t, std::size_t, std::size_t, std::span<float> x) { silu(x); });
        each_row(part, threads, 32 * of_.value_heads, [&](std::span<float> row, std::size_t) {
            for (std::size_t head = 0; head < of_.value_heads; ++head)
                row[steps + head] = softplus(row[steps + head] + w.time_bias[head]);
        });
        const std::size_t size = of_.key_dim * of_.value_dim;
        threads.parallel_for(
            of_.value_heads, part.count * of_.value_heads * 3 * size, [&](std::size_t from, std::size_t end) {
                for (std::size_t head = from; head < end; ++head)
                    advance(part, convolved + head * size, size, [&](std::size_t at, std::span<float> state) {
                        const auto row = in_.row(at);
                        const std::size_t group = 2 * values + key_head_of(head) * of_.key_dim;
                        const float step = row[steps + head];
                        const selective_step with{exp_one(w.decay[head] * step), step, w.skip[head]};
                        selective_state_step(state, row.subspan(group + keys, of_.key_dim),
                                             row.subspan(group, of_.key_dim),
                                             row.subspan(values + head * of_.value_dim, of_.value_dim), with,
                                             made_.row(at).subspan(head * of_.value_dim, of_.value_dim));
                    });
            });
        each_row(part, threads, 8 * values, [&](std::span<float> row, std::size_t at) {
            gated_silu(row.first(values), made_.row(at), made_.row(at));
            const std::size_t of_group = values / of_.key_heads;
            for (std::size_t first = 0; first < values; first += of_group) {
                const auto each = made_.row(at).subspan(first, of_group);
                rms_norm(each, std::span(w.mixer_norm).subspan(first, of_group), config_.rms_norm_eps, each);
            }
        });
    }

    // Runs body(input row, number of the row) for the rows of a slice.
    template <class Body>
    void each_row(const recurrent_rows& part, thread_pool& threads, std::size_t cost, Body body) {
        threads.parallel_for(part.count, part.count * cost, [&](std::size_t from, std::size_t end) {
            for (std::size_t row = part.first + from; row < part.first + end; ++row)
                body(in_.row(row), row);
        });
    }

    [[nodiscard]] std::size_t key_head_of(std::size_t value_head) const {
        return of_.tiled ? value_head % of_.key_heads : value_head / (of_.value_heads / of_.key_heads);
    }

    static constexpr std::size_t block_channels = recurrence_config::block_channels;
    static constexpr float length_epsilon = 1e-6F; // of transformers' l2norm

    const model_config& config_;
    const recurrence_config& of_;
    std::size_t layer_ = 0; // where the layer's state begins, in floats
    activations in_;        // (rows, mixer inputs)
    activations made_;      // (rows, mixer outputs)
};

}} // namespace kvcache
