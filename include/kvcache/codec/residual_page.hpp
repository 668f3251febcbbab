// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/memory.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {
namespace codec {

/// Rows of one page in full precision, transformed by its codec. They are kept until the page is quantized and no query
/// reads them any more. `Rows` defines their layout.
template <class Rows>
class basic_residual_page {
public:
    /// Throws: bad_alloc.
    explicit basic_residual_page(page_shape shape)
        : shape_(shape), rows_(shape), bytes_(rows_.page_bytes()), written_(shape.layers) {}

    /// Bytes of one residual page.
    [[nodiscard]] static std::size_t bytes_for(page_shape shape) noexcept { return Rows(shape).page_bytes(); }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    /// Writable bytes, for rows that were computed elsewhere.
    [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }

    /// Marks the first `rows` rows as present in all layers, and no others.
    void begin(std::uint32_t rows) noexcept {
        for (auto& written : written_)
            written.store(rows, std::memory_order_relaxed);
    }

    /// Copies the first rows of another residual page.
    void take(const basic_residual_page& other, std::size_t rows) { rows_.copy(other.bytes_, bytes_, rows); }

    /// Writes a row of a layer, and quantizes the layer into `page` when its last missing row arrives. Several threads
    /// may write rows, each row once a layer. keys, values: (kv_heads, head_dim)
    template <page_writer Codec>
    void write(const Codec& codec, std::span<std::byte> page, layer_id layer, std::uint32_t row,
               std::span<const float> keys, std::span<const float> values) {
        const std::size_t dim = shape_.head_dim;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
            const page_tile at{layer, head_id{head}, row / tile_tokens};
            // The memory of the value serves as scratch for transforming the key.
            float* const own =
                const_cast<float*>(rows_.values(bytes_, at, {})) + row % tile_tokens * padded_head_dim(dim);
            float* const column = const_cast<float*>(rows_.keys(bytes_, at, {})) + row % tile_tokens;
            std::copy_n(keys.data() + head * dim, dim, own);
            codec.transform_key({own, dim});
            for (std::size_t d = 0; d < dim; ++d)
                column[d * tile_tokens] = own[d];
            std::copy_n(values.data() + head * dim, dim, own);
            codec.transform_value({own, dim});
        }
        auto& written = written_[index_of(layer)];
        if (written.fetch_add(1, std::memory_order_acq_rel) + 1 < shape_.tokens)
            return;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
            codec.encode(page, layer, head_id{head}, bytes_);
        written.store(0, std::memory_order_relaxed); // reset for the next page that uses this memory
    }

private:
    page_shape shape_;
    Rows rows_;
    aligned_vector<std::byte> bytes_;
    std::vector<std::atomic<std::uint32_t>> written_; // rows written, by layer
};

/// Residual rows in the layout of the f32 codec.
using residual_page = basic_residual_page<f32::state>;

} // namespace codec

/// The pages of one sequence, as attention reads them.
struct sequence_pages {
    std::span<const page_entry> table = {};
    /// Residual pages by table entry, for a codec of whole pages: the full-precision rows where a query of this
    /// sequence may read them. Null elsewhere; entries past its end count as null.
    std::span<const codec::residual_page* const> residual = {};
    bool spliced = false; ///< Rows of one page may be in several entries, and bases change often (see spliced_tiles).
};

}} // namespace kvcache
