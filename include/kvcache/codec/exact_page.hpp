// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/plain.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The rows of one page as they were computed, turned by its codec, until the page is coded and nobody reads them any
/// more. They lie as `Rows` keeps them.
template <class Rows>
class basic_exact_page {
public:
    /// Throws: bad_alloc.
    explicit basic_exact_page(page_shape shape)
        : shape_(shape), rows_(shape), bytes_(rows_.page_bytes()), written_(shape.layers) {}

    /// The bytes that one takes.
    [[nodiscard]] static std::size_t bytes_for(page_shape shape) noexcept { return Rows(shape).page_bytes(); }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    /// To put rows in place that were computed elsewhere.
    [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }

    /// Says that its first `rows` rows are there, in all layers, and no others.
    void begin(std::uint32_t rows) noexcept {
        for (auto& written : written_)
            written.store(rows, std::memory_order_relaxed);
    }

    /// Takes the first rows of another.
    void take(const basic_exact_page& other, std::size_t rows) { rows_.copy(other.bytes_, bytes_, rows); }

    /// Writes a row of a layer, and codes the layer into `page` with its last missing row. Rows may be written by
    /// several threads, each once a layer. keys, values: (kv_heads, head_dim)
    template <page_writer Codec>
    void write(const Codec& codec, std::span<std::byte> page, layer_id layer, std::uint32_t row,
               std::span<const float> keys, std::span<const float> values) {
        const std::size_t dim = shape_.head_dim;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
            const page_tile at{layer, head_id{head}, row / tile_tokens};
            // Where the value will be, the key is turned first.
            float* const own = const_cast<float*>(rows_.values(bytes_, at, {})) + row % tile_tokens * value_width(dim);
            float* const column = const_cast<float*>(rows_.keys(bytes_, at, {})) + row % tile_tokens;
            std::copy_n(keys.data() + head * dim, dim, own);
            codec.turn_key({own, dim});
            for (std::size_t d = 0; d < dim; ++d)
                column[d * tile_tokens] = own[d];
            std::copy_n(values.data() + head * dim, dim, own);
            codec.turn_value({own, dim});
        }
        auto& written = written_[index_of(layer)];
        if (written.fetch_add(1, std::memory_order_acq_rel) + 1 < shape_.tokens)
            return;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
            codec.encode(page, layer, head_id{head}, bytes_);
        written.store(0, std::memory_order_relaxed); // for the page that takes its place
    }

private:
    page_shape shape_;
    Rows rows_;
    aligned_vector<std::byte> bytes_;
    std::vector<std::atomic<std::uint32_t>> written_; // rows, by layer
};

/// Exact rows as the plain codec keeps them.
using exact_page = basic_exact_page<plain::state>;

} // namespace kvcache
