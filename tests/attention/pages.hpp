// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel/numbers.hpp"

namespace pages {

namespace kv = kvcache;

/// Rows [first, last) of some query rows.
[[nodiscard]] inline kv::query_rows rows_between(kv::query_rows all, std::size_t first, std::size_t last,
                                                 std::size_t head_dim) {
    all.data += first * all.stride;
    if (all.rotations != nullptr)
        all.rotations += first * head_dim;
    all.out += first * all.out_stride;
    all.position = all.position_of(first);
    if (all.positions != nullptr)
        all.positions += first;
    all.rows = last - first;
    return all;
}

/// The f32 codec, except that every tile is copied out of its page, as by a codec that decodes.
struct copying {
    kv::codec::f32::state inner;
    std::size_t key_numbers, value_numbers;

    [[nodiscard]] std::size_t page_bytes() const { return inner.page_bytes(); }
    [[nodiscard]] std::string name() const { return "copying"; }
    void encode(std::span<std::byte> page, kv::page_row at, std::span<const float> key,
                std::span<const float> value) const {
        inner.encode(page, at, key, value);
    }
    void copy(std::span<const std::byte> from, std::span<std::byte> to, std::size_t rows) const {
        inner.copy(from, to, rows);
    }
    [[nodiscard]] const float* keys(std::span<const std::byte> page, kv::page_tile at, std::span<float> scratch) const {
        return out_of_page(inner.keys(page, at, scratch), key_numbers, scratch);
    }
    [[nodiscard]] const float* values(std::span<const std::byte> page, kv::page_tile at,
                                      std::span<float> scratch) const {
        return out_of_page(inner.values(page, at, scratch), value_numbers, scratch);
    }

private:
    [[nodiscard]] static const float* out_of_page(const float* from, std::size_t count, std::span<float> scratch) {
        if (scratch.size() < count)
            throw std::length_error("the scratch is too small");
        std::copy_n(from, count, scratch.begin());
        return scratch.data();
    }
};

/// Positions in one page: `count` rows from `first` on, rotated from `base`.
struct piece {
    std::uint32_t count = 0;
    std::uint32_t first = 0;
    std::int64_t base = 0;
};

/// Random queries, keys and values as plain arrays, and their rotation.
struct sequence {
    kv::rope rotation;
    kv::attention_shape shape;
    std::size_t tokens;
    std::vector<float> queries, keys, values; // (tokens, heads, head_dim)

    sequence(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t dim, std::size_t length, std::uint64_t seed)
        : rotation(kv::rope::standard_frequencies(dim, 10000.0)),
          shape{.heads = heads, .kv_heads = kv_heads, .head_dim = dim, .scale = 0.125f, .rotation = nullptr},
          tokens(length),
          queries(numbers::uniforms(seed, length * heads * dim, 4.0f)),
          keys(numbers::uniforms(seed + 1, length * kv_heads * dim, 2.0f)),
          values(numbers::uniforms(seed + 2, length * kv_heads * dim)) {}
    sequence(const sequence&) = delete;

    [[nodiscard]] kv::attention_shape turned() const {
        kv::attention_shape with = shape;
        with.rotation = &rotation;
        return with;
    }
    [[nodiscard]] std::size_t width() const { return std::size_t{shape.heads} * shape.head_dim; }
};

/// The pieces of positions [0, tokens) when they are computed in place.
inline std::vector<piece> in_place(std::size_t tokens, std::uint32_t page_tokens) {
    std::vector<piece> made;
    for (std::size_t at = 0; at < tokens; at += page_tokens)
        made.push_back({static_cast<std::uint32_t>(std::min<std::size_t>(page_tokens, tokens - at)), 0, 0});
    return made;
}

/// A sequence written into pages; unused rows have the value `filler`.
template <class Policy>
class written_by {
public:
    written_by(const sequence& of, std::uint32_t page_tokens, const std::vector<piece>& pieces, float filler)
        : of_(of),
          shape_{1, of.shape.kv_heads, of.shape.head_dim, page_tokens},
          codec_(Policy{}.open(shape_)),
          storage_(kv::storage::heap{}.open(pieces.size(), codec_.page_bytes())) {
        const std::size_t dim = of.shape.head_dim;
        std::vector<float> rotation(dim), key(dim);
        std::size_t position = 0;
        // Pages are in reverse order, so that memory order differs from position order.
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            const auto page = static_cast<kv::page_id>(pieces.size() - 1 - i);
            if (!storage_.acquire(page))
                throw std::bad_alloc();
            fill(storage_.bytes(page), filler);
            table_.push_back(
                {.page = page, .base = pieces[i].base, .first = pieces[i].first, .count = pieces[i].count});
            for (std::uint32_t row = 0; row < pieces[i].count; ++row, ++position) {
                of.rotation.fill(static_cast<std::int64_t>(position) - pieces[i].base, rotation);
                for (std::uint32_t head = 0; head < of.shape.kv_heads; ++head) {
                    const std::size_t at = (position * of.shape.kv_heads + head) * dim;
                    kv::rotate_head({of.keys.data() + at, dim}, rotation, key);
                    codec_.encode(storage_.bytes(page), {kv::layer_id{0}, kv::head_id{head}, pieces[i].first + row},
                                  key, {of.values.data() + at, dim});
                }
            }
        }
    }

    /// Output of rows [first, last), `at_once` rows a call. (rows, heads, head_dim)
    [[nodiscard]] std::vector<float> run(std::size_t first, std::size_t last, std::size_t at_once) const {
        return attend_by(codec_, first, last, at_once);
    }

    /// The same with a codec whose tiles are copies.
    [[nodiscard]] std::vector<float> attend_copies(std::size_t first, std::size_t last, std::size_t at_once) const {
        const std::size_t dim = of_.shape.head_dim;
        return attend_by(copying{codec_, dim * kv::tile_tokens, kv::padded_head_dim(dim) * kv::tile_tokens}, first,
                         last, at_once);
    }

private:
    template <class Codec>
    [[nodiscard]] std::vector<float> attend_by(const Codec& codec, std::size_t first, std::size_t last,
                                               std::size_t at_once) const {
        const std::size_t width = of_.width(), dim = of_.shape.head_dim;
        std::vector<float> rotations((last - first) * dim), out((last - first) * width, numbers::not_a_number);
        for (std::size_t row = first; row < last; ++row)
            of_.rotation.fill(static_cast<std::int64_t>(row), std::span(rotations).subspan((row - first) * dim, dim));
        const kv::attention_shape shape = of_.turned();
        const kv::query_rows asked{.data = of_.queries.data() + first * width,
                                   .rotations = rotations.data(),
                                   .out = out.data(),
                                   .stride = width,
                                   .out_stride = width,
                                   .position = first,
                                   .rows = last - first};
        for (std::uint32_t head = 0; head < of_.shape.kv_heads; ++head)
            for (std::size_t row = 0; row < last - first; row += at_once)
                kv::paged_attention(shape, kv::page_source(codec, storage_),
                                    {{table_}, rows_between(asked, row, std::min(row + at_once, last - first), dim)},
                                    kv::layer_id{0}, kv::head_id{head});
        return out;
    }

    static void fill(std::span<std::byte> bytes, float filler) {
        for (std::size_t at = 0; at < bytes.size(); at += sizeof filler)
            std::memcpy(bytes.data() + at, &filler, sizeof filler);
    }

    const sequence& of_;
    kv::page_shape shape_;
    typename Policy::state codec_;
    kv::storage::heap::state storage_;
    std::vector<kv::page_entry> table_;
};
using written = written_by<kv::codec::f32>;

} // namespace pages
