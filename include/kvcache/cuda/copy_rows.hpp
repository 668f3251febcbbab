// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cuda/device_math.hpp>
#include <kvcache/cuda/device_page_pool.hpp>
#include <kvcache/cuda/page_layout.hpp>

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

}}} // namespace kvcache::cuda
