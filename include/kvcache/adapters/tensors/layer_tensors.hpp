// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/shape.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The number format of a tensor: float32, float16 or bfloat16.
enum class tensor_type : std::uint8_t { f32, f16, bf16 };

/// The layout of a layer's keys and of its values: the head_dim numbers of a token's row of a KV head are adjacent, and
/// begin at number token * token_stride + head * head_stride.
struct tensor_layout {
    tensor_type type = tensor_type::f32;
    std::size_t tokens = 0;       ///< Tokens for which there is memory.
    std::size_t token_stride = 0; ///< Numbers from a token to the next.
    std::size_t head_stride = 0;  ///< Numbers from a KV head to the next.

    /// Unpadded tensors (1, kv_heads, tokens, head_dim), those of most ONNX models.
    [[nodiscard]] static constexpr tensor_layout hnd(tensor_type type, std::size_t tokens, std::size_t head_dim) {
        return {type, tokens, head_dim, tokens * head_dim};
    }
    /// Unpadded tensors (1, tokens, kv_heads, head_dim).
    [[nodiscard]] static constexpr tensor_layout nhd(tensor_type type, std::size_t tokens, std::size_t kv_heads,
                                                     std::size_t head_dim) {
        return {type, tokens, kv_heads * head_dim, head_dim};
    }
};

/// The keys and values of one layer in memory of a runtime. `Void`: void, or const void where they are only read.
template <class Void>
struct layer_tensors {
    Void* keys = nullptr; ///< Any alignment, as for the values.
    Void* values = nullptr;
    tensor_layout layout = {};
    std::size_t first = 0; ///< Position of the tensors' first token in the sequence.
};
/// Tensors that a model reads.
using past_tensors = layer_tensors<void>;
/// Tensors that a model has written.
using present_tensors = layer_tensors<const void>;

namespace detail {

/// Whether tensors have rows [begin, end) of a layer. Errors: those of read_rows.
template <class Void>
[[nodiscard]] result<void> check_tensors(const layer_tensors<Void>& of, const page_shape& shape, std::size_t begin,
                                         std::size_t end) {
    const tensor_layout& layout = of.layout;
    const auto wrong = [](const char* field, std::initializer_list<std::string_view> words) {
        return error{error_code::out_of_range, field, joined(words)};
    };
    if (layout.type != tensor_type::f32 && layout.type != tensor_type::f16 && layout.type != tensor_type::bf16)
        return error{error_code::unsupported, "type", "numbers of tensors are float32, float16 or bfloat16"};
    if (of.first > begin)
        return wrong("first", {"the tensors begin at token ", std::to_string(of.first),
                               ", after the first row, which is ", std::to_string(begin)});
    if (layout.tokens < end - of.first)
        return wrong("tokens", {"the tensors have ", std::to_string(layout.tokens), " tokens, and ",
                                std::to_string(end - of.first), " are needed"});
    if (begin == end)
        return {};
    if (of.keys == nullptr || of.values == nullptr)
        return error{error_code::malformed, of.keys == nullptr ? "keys" : "values",
                     "the pointer to the tensor is null"};
    constexpr std::size_t most = std::numeric_limits<std::ptrdiff_t>::max() / 16; // offsets in bytes have no overflow
    for (const auto& [name, stride, count] :
         {std::tuple{"token_stride", layout.token_stride, layout.tokens},
          std::tuple{"head_stride", layout.head_stride, std::size_t{shape.kv_heads}}})
        if (stride < shape.head_dim || stride > most / count)
            return wrong(name, {"a stride of ", std::to_string(stride), " numbers does not fit rows of ",
                                std::to_string(shape.head_dim), " numbers, ", std::to_string(count), " of them"});
    if (layout.head_stride < (layout.tokens - 1) * layout.token_stride + shape.head_dim &&
        layout.token_stride < (shape.kv_heads - 1) * layout.head_stride + shape.head_dim)
        return wrong("head_stride", {"with strides of ", std::to_string(layout.token_stride), " and ",
                                     std::to_string(layout.head_stride), " numbers rows overlap"});
    return {};
}

/// Calls `f` with a number of a known type.
template <class F>
void with_number_of(tensor_type type, F&& f) {
    if (type == tensor_type::f32)
        f(float{});
    else if (type == tensor_type::f16)
        f(half{});
    else
        f(bfloat16{});
}

/// Converts numbers into memory of any alignment; those of the same type keep their bits.
template <weight_format To, weight_format From>
void put_numbers(const From* from, std::size_t count, std::byte* to) {
    if constexpr (std::same_as<To, From>)
        std::memcpy(to, from, count * sizeof(To));
    else
        for (std::size_t i = 0; i < count; ++i) {
            const To number = narrow<To>(widen(from[i]));
            std::memcpy(to + i * sizeof(To), &number, sizeof(To));
        }
}
/// Widens numbers from memory of any alignment.
template <weight_format From>
void get_numbers(const std::byte* from, std::size_t count, float* to) {
    if constexpr (std::same_as<From, float>)
        std::memcpy(to, from, count * sizeof(float));
    else
        for (std::size_t i = 0; i < count; ++i) {
            From number;
            std::memcpy(&number, from + i * sizeof(From), sizeof(From));
            to[i] = widen(number);
        }
}

/// The bytes before a row. `position`: in the sequence.
template <weight_format Number, class Void>
[[nodiscard]] std::size_t row_bytes(const layer_tensors<Void>& of, std::size_t position, std::size_t head) {
    return ((position - of.first) * of.layout.token_stride + head * of.layout.head_stride) * sizeof(Number);
}

} // namespace detail

}} // namespace kvcache
