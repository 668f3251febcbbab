// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "own_transformer.hpp"

namespace support {

/// An engine of a host: a transformer, and keys and values in a tensor of its own that is divided into blocks, as in
/// vLLM. A block table says which blocks hold the rows of a sequence, in order.
class own_engine {
public:
    static constexpr std::size_t block_tokens = 16;

    explicit own_engine(std::size_t blocks) : tensor_(blocks * block_numbers) {}

    [[nodiscard]] const own_transformer& model() const { return model_; }

    /// Runs tokens at the positions from `first` on; their rows go into the blocks of the table. Returns the last
    /// logits.
    std::vector<float> run(std::span<const kvcache::token_id> tokens, std::size_t first,
                           std::span<const std::int32_t> table) {
        std::vector<float> logits;
        for (std::size_t position = first; position < first + tokens.size(); ++position)
            logits = model_.step(
                tokens[position - first], position,
                [&](std::size_t layer, std::size_t head, const own_transformer::row_visitor& visit) {
                    for (std::size_t past = 0; past <= position; ++past) {
                        const float* const row = row_of(table, past, layer) + head * own_transformer::head_dim;
                        visit(row, row + row_numbers);
                    }
                },
                [&](std::size_t layer, std::span<const float> keys, std::span<const float> values) {
                    float* const row = row_of(table, position, layer);
                    std::copy(keys.begin(), keys.end(), row);
                    std::copy(values.begin(), values.end(), row + row_numbers);
                });
        return logits;
    }

    /// Returns whether it could: an engine on a GPU might not.
    bool copy_block(kvcache::page_id from, kvcache::page_id to) {
        std::copy_n(tensor_.begin() + static_cast<std::ptrdiff_t>(index_of(from) * block_numbers), block_numbers,
                    tensor_.begin() + static_cast<std::ptrdiff_t>(index_of(to) * block_numbers));
        return true;
    }

private:
    static constexpr std::size_t row_numbers = own_transformer::kv_heads * own_transformer::head_dim,
                                 block_numbers = own_transformer::layers * block_tokens * 2 * row_numbers;

    // The keys of a position, and its values after them.
    [[nodiscard]] float* row_of(std::span<const std::int32_t> table, std::size_t position, std::size_t layer) {
        const auto block = static_cast<std::size_t>(table[position / block_tokens]);
        return tensor_.data() + block * block_numbers +
               (layer * block_tokens + position % block_tokens) * 2 * row_numbers;
    }

    own_transformer model_{1};
    std::vector<float> tensor_; // (blocks, layers, block_tokens, 2, kv_heads, head_dim)
};

} // namespace support
