// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

namespace support {

/// A small transformer of a host, in plain loops, with no function of this library: two layers, four query heads over
/// two KV heads, RoPE, weights from a seed. It runs one token at a time and keeps no keys and values: its caller does.
class own_transformer {
public:
    static constexpr std::size_t layers = 2, heads = 4, kv_heads = 2, head_dim = 16, vocabulary = 96;

    /// Sees the key and the value of one row. (head_dim)
    using row_visitor = std::function<void(const float* key, const float* value)>;
    /// Shows the rows from position 0 to the token's own, in this order.
    using reader = std::function<void(std::size_t layer, std::size_t kv_head, const row_visitor& visit)>;
    /// Stores the token's row; read comes after it. keys, values: (kv_heads, head_dim)
    using writer = std::function<void(std::size_t layer, std::span<const float> keys, std::span<const float> values)>;

    explicit own_transformer(std::uint32_t seed) {
        std::mt19937 dice(seed);
        const auto matrix = [&](std::size_t outputs, std::size_t inputs) {
            std::vector<float> made(outputs * inputs);
            for (float& weight : made)
                weight = (static_cast<float>(dice()) * 0x1p-31f - 1.0f) / std::sqrt(static_cast<float>(inputs));
            return made;
        };
        embedding_ = matrix(vocabulary, width);
        for (layer_weights& layer : layers_)
            layer = {matrix(width, width), matrix(kv_width, width),  matrix(kv_width, width),
                     matrix(width, width), matrix(2 * width, width), matrix(width, 2 * width)};
    }

    /// Returns the logits after the last token, computed with all keys and values in vectors. (vocabulary)
    [[nodiscard]] std::vector<float> logits_after(std::span<const kvcache::token_id> tokens) const {
        std::vector<float> keys[layers], values[layers], logits; // (tokens, kv_heads, head_dim) in each layer
        for (std::size_t position = 0; position < tokens.size(); ++position)
            logits = step(
                tokens[position], position,
                [&](std::size_t layer, std::size_t head, const row_visitor& visit) {
                    for (std::size_t at = head * head_dim; at < keys[layer].size(); at += kv_width)
                        visit(keys[layer].data() + at, values[layer].data() + at);
                },
                [&](std::size_t layer, std::span<const float> key, std::span<const float> value) {
                    keys[layer].insert(keys[layer].end(), key.begin(), key.end());
                    values[layer].insert(values[layer].end(), value.begin(), value.end());
                });
        return logits;
    }

    /// Runs the token at `position`. Returns the logits of the next token. (vocabulary)
    [[nodiscard]] std::vector<float> step(kvcache::token_id token, std::size_t position, const reader& read,
                                          const writer& write) const {
        const auto row = embedding_.begin() + index_of(token) * static_cast<std::ptrdiff_t>(width);
        std::vector<float> state(row, row + static_cast<std::ptrdiff_t>(width));
        for (std::size_t l = 0; l < layers; ++l) {
            const layer_weights& layer = layers_[l];
            const std::vector<float> input = normalized(state);
            std::vector<float> queries = product(layer.query, input), keys = product(layer.key, input);
            rotate(queries, position);
            rotate(keys, position);
            write(l, keys, product(layer.value, input));
            std::vector<float> attended;
            for (std::size_t head = 0; head < heads; ++head) {
                attention one(queries.data() + head * head_dim);
                read(l, head / (heads / kv_heads), [&](const float* key, const float* value) { one.add(key, value); });
                for (const float sum : one.sums)
                    attended.push_back(sum / one.weights);
            }
            add(state, product(layer.out, attended));
            std::vector<float> hidden = product(layer.up, normalized(state));
            for (float& number : hidden)
                number = number > 0.0f ? number : 0.0f;
            add(state, product(layer.down, hidden));
        }
        return product(embedding_, normalized(state));
    }

private:
    static constexpr std::size_t width = heads * head_dim, kv_width = kv_heads * head_dim;

    struct layer_weights {
        std::vector<float> query, key, value, out, up, down; // (outputs, inputs)
    };

    /// Attention of one query over rows that come one by one: an online softmax.
    struct attention {
        explicit attention(const float* row) : query(row) {}
        void add(const float* key, const float* value) {
            float score = 0.0f;
            for (std::size_t d = 0; d < head_dim; ++d)
                score += query[d] * key[d];
            score /= std::sqrt(static_cast<float>(head_dim));
            const float top = score > largest ? score : largest;
            const float before = std::exp(largest - top), now = std::exp(score - top);
            weights = weights * before + now;
            for (std::size_t d = 0; d < head_dim; ++d)
                sums[d] = sums[d] * before + now * value[d];
            largest = top;
        }
        const float* query;
        float largest = -INFINITY, weights = 0.0f;
        float sums[head_dim] = {};
    };

    static std::vector<float> product(const std::vector<float>& matrix, const std::vector<float>& input) {
        std::vector<float> out(matrix.size() / input.size(), 0.0f);
        for (std::size_t o = 0; o < out.size(); ++o)
            for (std::size_t i = 0; i < input.size(); ++i)
                out[o] += matrix[o * input.size() + i] * input[i];
        return out;
    }
    static std::vector<float> normalized(std::vector<float> row) {
        float squares = 0.0f;
        for (const float number : row)
            squares += number * number;
        for (float& number : row)
            number /= std::sqrt(squares / static_cast<float>(width) + 1e-5f);
        return row;
    }
    static void rotate(std::vector<float>& rows, std::size_t position) {
        for (std::size_t i = 0; i < rows.size(); i += 2) {
            const float frequency = std::pow(10000.0f, -static_cast<float>(i % head_dim) / head_dim);
            const float angle = static_cast<float>(position) * frequency;
            const float x = rows[i], y = rows[i + 1];
            rows[i] = x * std::cos(angle) - y * std::sin(angle);
            rows[i + 1] = x * std::sin(angle) + y * std::cos(angle);
        }
    }
    static void add(std::vector<float>& to, const std::vector<float>& more) {
        for (std::size_t i = 0; i < to.size(); ++i)
            to[i] += more[i];
    }

    std::vector<float> embedding_; // (vocabulary, width)
    layer_weights layers_[layers];
};

} // namespace support
