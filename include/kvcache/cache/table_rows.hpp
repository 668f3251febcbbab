// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/shape.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Consecutive rows of one layer and KV head in one page, in place. Row i has its key in the head_dim numbers from
/// keys + i * stride on, and its value from values + i * stride on.
template <class Number>
struct row_run {
    const Number* keys = nullptr;
    const Number* values = nullptr;
    std::size_t stride = 0;   ///< Numbers from a row to the next.
    std::size_t rows = 0;     ///< Number of rows, at least one.
    std::size_t position = 0; ///< Position of the first row in the sequence.
    std::int64_t base = 0;    ///< RoPE offset of the keys (see page_entry): zero unless tokens before them were erased
                              ///< or the rows are a reused chunk.
};

namespace detail {

/// The first `rows` rows of a page table, as sequences and leases show them to a host.
template <class Cache>
class table_rows {
    using codec_type = typename Cache::codec_type;
    // Not concepts where they are asserted: a compiler would print every requirement.
    static constexpr bool has_runs = row_major_codec<codec_type>;
    static constexpr bool writes_rows = page_reader<codec_type> && row_writer<codec_type>;

public:
    table_rows(const Cache& cache, std::span<const page_entry> table, std::size_t rows)
        : cache_(cache), table_(table), rows_(rows) {}

    template <class F>
    void for_each_run(layer_id layer, head_id head, F&& f) const {
        static_assert(has_runs,
                      "for_each_run needs a row-major codec (codec/row_major.hpp); gather copies the rows of f32");
        if constexpr (has_runs)
            for_each_entry(layer, head, [&](std::span<const std::byte> page, const page_entry& of, std::size_t first) {
                const auto& codec = cache_.codec();
                const page_row at{layer, head, of.first};
                f(row_run<typename codec_type::number>{codec.key_row(page, at), codec.value_row(page, at),
                                                       codec.row_stride(), of.count, first, of.base});
            });
    }

    void gather(layer_id layer, head_id head, std::span<float> keys, std::span<float> values) const {
        static_assert(writes_rows, "gather needs a codec that writes single rows (codec/f32.hpp, codec/row_major.hpp)");
        const std::size_t dim = cache_.shape().head_dim;
        require(keys.size() == rows_ * dim && values.size() == keys.size(),
                "gathered keys and values are (tokens, head_dim) each");
        if constexpr (has_runs)
            for_each_run(layer, head, [&](const auto& run) {
                for (std::size_t row = 0; row < run.rows; ++row)
                    for (std::size_t d = 0; d < dim; ++d) {
                        keys[(run.position + row) * dim + d] = widen(run.keys[row * run.stride + d]);
                        values[(run.position + row) * dim + d] = widen(run.values[row * run.stride + d]);
                    }
            });
        else if constexpr (writes_rows)
            gather_tiles(layer, head, keys.data(), values.data());
    }

private:
    /// Calls f(page, entry, position of its first row) for each entry with rows, the last one cut to `rows_`.
    template <class F>
    void for_each_entry(layer_id layer, head_id head, F&& f) const {
        require(index_of(layer) < cache_.shape().layers && index_of(head) < cache_.shape().kv_heads,
                "rows that are read are of a layer and a KV head of the page shape");
        std::size_t position = 0;
        for (page_entry entry : table_) {
            entry.count = static_cast<std::uint32_t>(std::min<std::size_t>(entry.count, rows_ - position));
            if (entry.count > 0)
                f(std::span<const std::byte>(cache_.storage().bytes(entry.page)), entry, position);
            position += entry.count;
        }
    }

    void gather_tiles(layer_id layer, head_id head, float* key, float* value) const {
        const std::size_t dim = cache_.shape().head_dim, width = padded_head_dim(dim);
        aligned_vector<float> key_scratch(dim * tile_tokens), value_scratch(width * tile_tokens);
        for_each_entry(layer, head, [&](std::span<const std::byte> page, const page_entry& of, std::size_t) {
            const float *keys = nullptr, *values = nullptr;
            for (std::uint32_t row = of.first; row < of.first + of.count; ++row) {
                const std::uint32_t lane = row % tile_tokens;
                if (row == of.first || lane == 0) {
                    keys = cache_.codec().keys(page, {layer, head, row / tile_tokens}, key_scratch);
                    values = cache_.codec().values(page, {layer, head, row / tile_tokens}, value_scratch);
                }
                for (std::size_t d = 0; d < dim; ++d)
                    *key++ = keys[d * tile_tokens + lane];
                value = std::copy_n(values + lane * width, dim, value);
            }
        });
    }

    const Cache& cache_;
    std::span<const page_entry> table_;
    std::size_t rows_;
};

} // namespace detail

}} // namespace kvcache
