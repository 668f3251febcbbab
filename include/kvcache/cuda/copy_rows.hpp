// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cuda/device_math.hpp>
#include <kvcache/cuda/device_page_pool.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache::inline KVCACHE_ABI::cuda {

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
        return (2 * tokens * side_vectors() + threads * each - 1) / (threads * each);
    }
    [[nodiscard]] std::size_t shared_bytes() const noexcept { return 0; }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        group.alone([&](unsigned thread) {
            vector16 held[each];
            vector16* to[each];
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < each; ++i) {
                to[i] = nullptr;
                const std::uint64_t at = (group.block() * each + i) * threads + thread;
                if (at >= 2 * tokens * side_vectors())
                    continue;
                // (tokens, keys or values, kv_heads, vectors)
                const auto token = static_cast<std::uint32_t>(at / (2 * side_vectors()));
                auto rest = static_cast<std::uint32_t>(at % (2 * side_vectors()));
                const bool values = rest >= side_vectors();
                rest -= values ? static_cast<std::uint32_t>(side_vectors()) : 0;
                const row_slot slot = slots[token];
                if (slot.page == row_slot::none)
                    continue;
                const auto vectors = static_cast<std::uint32_t>(layout.row_bytes() / 16);
                std::byte* const page = pool.page(slot.page) +
                                        layout.side(layer, values ? row_side::values : row_side::keys) +
                                        layout.codes(layout.row(slot.row, rest / vectors)) + rest % vectors * 16;
                std::byte* const outside = (values ? rows.values : rows.keys) + (token * side_vectors() + rest) * 16;
                held[i] = *reinterpret_cast<const vector16*>(Way == row_way::into_pages ? outside : page);
                to[i] = reinterpret_cast<vector16*>(Way == row_way::into_pages ? page : outside);
            }
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < each; ++i)
                if (to[i] != nullptr)
                    *to[i] = held[i];
        });
    }

private:
    // Vectors of one token's keys in all heads.
    [[nodiscard]] KVCACHE_HOST_DEVICE std::uint64_t side_vectors() const noexcept {
        return layout.shape.kv_heads * layout.row_bytes() / 16;
    }
};

} // namespace kvcache::cuda
