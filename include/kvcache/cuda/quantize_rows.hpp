// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/cuda/device_math.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Location of a token's rows: a page and a row in it.
struct row_slot {
    static constexpr std::uint32_t none = ~std::uint32_t{};
    std::uint32_t page = none; ///< `none` skips the token.
    std::uint32_t row = 0;
};

/// One layer's rows of many tokens, outside the pages.
struct token_rows {
    std::byte* keys = nullptr;            ///< (tokens, kv_heads, head_dim)
    std::byte* values = nullptr;          ///< (tokens, kv_heads, head_dim)
    row_format format = row_format::bf16; ///< f32, f16 or bf16
};

/// Direction of a copy.
enum class row_way : std::uint32_t { into_pages, out_of_pages };

/// Copies rows of one layer into pages (append, scatter) or out of them (gather), in the format of the pages, which
/// must have no scales. A thread copies four vectors of 16 bytes.
template <row_way Way>
struct copy_rows {
    static constexpr unsigned threads = 256;
    static constexpr unsigned each = 4;

    page_layout layout = {};
    device_page_pool pool = {};
    std::uint32_t layer = 0;
    std::uint32_t tokens = 0;
    const row_slot* slots = nullptr; ///< (tokens)
    token_rows rows = {};

    [[nodiscard]] std::uint64_t blocks() const noexcept {
        const std::uint64_t vectors = std::uint64_t{2} * tokens * layout.shape.kv_heads * (layout.row_bytes() / 16);
        return (vectors + threads * each - 1) / (threads * each);
    }
    [[nodiscard]] std::size_t shared_bytes() const noexcept { return 0; }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        const auto vectors = static_cast<std::uint32_t>(layout.row_bytes() / 16);
        const std::uint32_t side = layout.shape.kv_heads * vectors; // of one token's keys in all heads
        // (tokens, keys or values, kv_heads, vectors). 64-bit divisions are slow: only the block's first vector needs
        // them.
        const std::uint64_t first = group.block() * (threads * each);
        const auto first_token = static_cast<std::uint32_t>(first / (2 * side));
        const auto first_of_token = static_cast<std::uint32_t>(first % (2 * side));
        group.alone([&](unsigned thread) {
            vector16 held[each];
            vector16* to[each];
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < each; ++i) {
                to[i] = nullptr;
                const std::uint32_t at = first_of_token + i * threads + thread;
                const std::uint32_t token = first_token + at / (2 * side);
                if (token >= tokens)
                    continue;
                std::uint32_t rest = at % (2 * side);
                const bool values = rest >= side;
                rest -= values ? side : 0;
                const row_slot slot = slots[token];
                if (slot.page == row_slot::none)
                    continue;
                std::byte* const page = pool.page(slot.page) +
                                        layout.side(layer, values ? row_side::values : row_side::keys) +
                                        layout.codes(layout.row(slot.row, rest / vectors)) + rest % vectors * 16;
                std::byte* const outside =
                    (values ? rows.values : rows.keys) + (std::uint64_t{token} * side + rest) * 16;
                held[i] = *reinterpret_cast<const vector16*>(Way == row_way::into_pages ? outside : page);
                to[i] = reinterpret_cast<vector16*>(Way == row_way::into_pages ? page : outside);
            }
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < each; ++i)
                if (to[i] != nullptr)
                    *to[i] = held[i];
        });
    }
};

/// Encodes rows of one layer on their way into pages, or decodes them on their way out, as the host's codecs do, bit
/// for bit: `codec::int8` up to head_dim 128 (scale: the largest absolute value / 127), `codec::hadamard<codec::int4>`
/// (transformed by a Hadamard matrix over the largest power of two that divides head_dim; scale: of 32 values the one
/// of largest magnitude, / -8), `codec::f16` and `codec::bf16`. A thread has eight values; head_dim / 8 threads share a
/// row. A NaN makes its scale NaN.
template <row_way Way, row_format Format>
struct quantize_rows {
    static constexpr unsigned threads = 256;
    static constexpr bool transformed = Format == row_format::int4_hadamard;

    page_layout layout = {};
    device_page_pool pool = {};
    std::uint32_t layer = 0;
    std::uint32_t tokens = 0;
    const row_slot* slots = nullptr; ///< (tokens)
    token_rows rows = {};
    float transform_scale = 1.0f; ///< 1 / sqrt(size of a Hadamard block); set by `make`.

    /// Requires: head_dim is a multiple of 8 and at most 2048, and of 32 for int4; the layout has this format; the rows
    /// of all tokens, keys and values, are fewer than 2^32 - 256.
    [[nodiscard]] static quantize_rows make(const page_layout& layout, const device_page_pool& pool,
                                            std::uint32_t layer, std::uint32_t tokens, const row_slot* slots,
                                            const token_rows& rows) {
        expects(std::uint64_t{2} * tokens * layout.shape.kv_heads < (std::uint64_t{1} << 32) - threads,
                "the rows of a launch are counted in 32 bits");
        quantize_rows kernel{layout, pool, layer, tokens, slots, rows, 1.0f};
        kernel.transform_scale = 1.0f / std::sqrt(static_cast<float>(kernel.transformed_numbers()));
        return kernel;
    }

    [[nodiscard]] std::uint64_t blocks() const noexcept {
        return (std::uint64_t{tokens} * 2 * layout.shape.kv_heads + rows_a_block() - 1) / rows_a_block();
    }
    [[nodiscard]] std::size_t shared_bytes() const noexcept {
        return (transformed ? 2 * threads * 8 : 0) * sizeof(float) + 2 * threads * sizeof(float);
    }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        auto own = group.template own<held>();
        group.alone([&](unsigned thread) {
            own[thread] = find(group.block(), thread);
            if (own[thread].page == nullptr)
                return;
            if constexpr (Way == row_way::into_pages)
                read_outside(own[thread]);
            else
                read_page(own[thread]);
        });
        if constexpr (transformed)
            transform_rows(group, own);
        if constexpr (Way == row_way::into_pages)
            write_pages(group, own);
        else
            group.alone([&](unsigned thread) {
                if (own[thread].page != nullptr)
                    write_outside(own[thread]);
            });
    }

private:
    // A thread's eight values and their locations.
    struct held {
        float numbers[8];
        std::byte* page;    // codes of the row; null: no work
        std::byte* scale;   // first scale of the row
        std::byte* outside; // the row outside the pages
        std::uint32_t d;    // index of the first of the eight
    };

    [[nodiscard]] KVCACHE_HOST_DEVICE std::uint32_t lanes() const noexcept { return layout.shape.head_dim / 8; }
    [[nodiscard]] KVCACHE_HOST_DEVICE std::uint32_t rows_a_block() const noexcept { return threads / lanes(); }
    [[nodiscard]] KVCACHE_HOST_DEVICE std::uint32_t transformed_numbers() const noexcept {
        return layout.shape.head_dim & (~layout.shape.head_dim + 1);
    }

    [[nodiscard]] KVCACHE_HOST_DEVICE held find(std::uint64_t block, unsigned thread) const noexcept {
        held own{};
        const std::uint32_t row_of_block = thread / lanes(), heads = layout.shape.kv_heads;
        // (tokens, keys or values, kv_heads); divisions of 64 bits are slow
        const std::uint32_t row = static_cast<std::uint32_t>(block) * rows_a_block() + row_of_block;
        if (row_of_block >= rows_a_block() || row >= tokens * 2 * heads)
            return own;
        const std::uint32_t token = row / (2 * heads), rest = row % (2 * heads);
        const std::uint32_t head = rest < heads ? rest : rest - heads;
        const row_slot slot = slots[token];
        if (slot.page == row_slot::none)
            return own;
        std::byte* const side =
            pool.page(slot.page) + layout.side(layer, rest < heads ? row_side::keys : row_side::values);
        own.page = side + layout.codes(layout.row(slot.row, head));
        own.scale = side + layout.scales(layout.row(slot.row, head));
        const std::uint64_t number_bytes = rows.format == row_format::f32 ? 4 : 2;
        own.outside = (rest < heads ? rows.keys : rows.values) +
                      (std::uint64_t{token} * heads + head) * layout.shape.head_dim * number_bytes;
        own.d = thread % lanes() * 8;
        return own;
    }

    KVCACHE_HOST_DEVICE void read_outside(held& own) const noexcept {
        if (rows.format == row_format::f32)
            row_numbers<row_format::f32>::load(own.outside, own.d, own.numbers);
        else if (rows.format == row_format::bf16)
            row_numbers<row_format::bf16>::load(own.outside, own.d, own.numbers);
        else
            row_numbers<row_format::f16>::load(own.outside, own.d, own.numbers);
    }
    KVCACHE_HOST_DEVICE void write_outside(const held& own) const noexcept {
        if (rows.format == row_format::f32)
            row_numbers<row_format::f32>::store(own.numbers, own.outside, own.d);
        else if (rows.format == row_format::bf16)
            row_numbers<row_format::bf16>::store(own.numbers, own.outside, own.d);
        else
            row_numbers<row_format::f16>::store(own.numbers, own.outside, own.d);
    }

    KVCACHE_HOST_DEVICE static void read_page(held& own) noexcept {
        row_numbers<Format>::load(own.page, own.d, own.numbers);
        if constexpr (Format == row_format::int8 || transformed) {
            const auto* const scales = reinterpret_cast<const std::uint16_t*>(own.scale);
            const float scale = from_f16(scales[transformed ? own.d / int4_group : 0]);
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < 8; ++i)
                own.numbers[i] = times(own.numbers[i], scale);
        }
    }

    // Sums and differences of values 1, 2, 4, ... apart: within a thread's eight, then between threads.
    template <class Group, class Registers>
    KVCACHE_HOST_DEVICE void transform_rows(Group& group, Registers& own) const {
        float* const exchange = group.template shared<float>(0, 2 * threads * 8);
        group.alone([&](unsigned thread) {
            float(&x)[8] = own[thread].numbers;
            KVCACHE_DEVICE_UNROLL
            for (unsigned pair = 0; pair < 12; ++pair) {
                const unsigned apart = 1u << pair / 4, i = pair % 4 / apart * 2 * apart + pair % 4 % apart;
                const float a = x[i], b = x[i + apart];
                x[i] = plus(a, b);
                x[i + apart] = plus(a, -b);
            }
        });
        unsigned turn = 0;
        for (unsigned apart = 1; apart < transformed_numbers() / 8; apart *= 2, ++turn) {
            float* const here = exchange + turn % 2 * threads * 8; // (8, threads)
            group.each([&](unsigned thread) {
                KVCACHE_DEVICE_UNROLL
                for (unsigned i = 0; i < 8; ++i)
                    here[i * threads + thread] = own[thread].numbers[i];
            });
            group.alone([&](unsigned thread) {
                const unsigned lane = thread % lanes();
                const bool upper = (lane & apart) != 0;
                const unsigned other = upper ? thread - apart : thread + apart;
                if (other >= threads)
                    return; // part of an incomplete row
                KVCACHE_DEVICE_UNROLL
                for (unsigned i = 0; i < 8; ++i) {
                    const float mine = own[thread].numbers[i], theirs = here[i * threads + other];
                    own[thread].numbers[i] = upper ? plus(theirs, -mine) : plus(mine, theirs);
                }
            });
        }
        group.alone([&](unsigned thread) {
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < 8; ++i)
                own[thread].numbers[i] = times(own[thread].numbers[i], transform_scale);
        });
    }

    template <class Group, class Registers>
    KVCACHE_HOST_DEVICE void write_pages(Group& group, Registers& own) const {
        if constexpr (Format == row_format::int8 || transformed) {
            float* const most =
                group.template shared<float>(transformed ? 2 * threads * 8 * sizeof(float) : 0, threads);
            float* const least = most + threads;
            group.each([&](unsigned thread) {
                float up = 0.0f, down = 0.0f; // maxima of the values and of the negated values
                KVCACHE_DEVICE_UNROLL
                for (unsigned i = 0; i < 8; ++i) {
                    up = larger_or_none(own[thread].numbers[i], up);
                    down = larger_or_none(-own[thread].numbers[i], down);
                }
                most[thread] = up;
                least[thread] = down;
            });
            group.alone([&](unsigned thread) {
                held& mine = own[thread];
                if (mine.page == nullptr)
                    return;
                const unsigned share = transformed ? int4_group / 8 : lanes(), lane = thread % lanes();
                const unsigned first = thread - lane % share;
                float up = 0.0f, down = 0.0f;
                for (unsigned i = 0; i < share; ++i) {
                    up = larger_or_none(most[first + i], up);
                    down = larger_or_none(least[first + i], down);
                }
                const float scale =
                    transformed ? divided(up > down ? up : -down, -8.0f) : divided(larger_or_none(up, down), 127.0f);
                const std::uint16_t kept = to_f16(up != up || down != down ? up + down : scale);
                if (lane % share == 0)
                    reinterpret_cast<std::uint16_t*>(mine.scale)[transformed ? mine.d / int4_group : 0] = kept;
                const float by = from_f16(kept) != 0.0f ? divided(1.0f, from_f16(kept)) : 0.0f;
                KVCACHE_DEVICE_UNROLL
                for (unsigned i = 0; i < 8; ++i)
                    mine.numbers[i] = whole(times(mine.numbers[i], by));
                row_numbers<Format>::store(mine.numbers, mine.page, mine.d);
            });
        } else {
            group.alone([&](unsigned thread) {
                if (own[thread].page != nullptr)
                    row_numbers<Format>::store(own[thread].numbers, own[thread].page, own[thread].d);
            });
        }
    }

    // The nearest code; a NaN gives any code, since its scale is NaN.
    [[nodiscard]] KVCACHE_HOST_DEVICE static float whole(float x) noexcept {
        constexpr float low = transformed ? -8.0f : -127.0f, high = transformed ? 7.0f : 127.0f;
        return x >= high ? high : x > low ? nearest(x) : low;
    }
};

}}} // namespace kvcache::cuda
