// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/little_endian.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Types of metadata values in a GGUF file, with the numbers of the format.
enum class gguf_type : std::uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7, ///< One byte, 0 or 1.
    string = 8,  ///< A length in 8 bytes, then that many bytes.
    array = 9,   ///< The type of the elements in 4 bytes, their number in 8, then the elements.
    u64 = 10,
    i64 = 11,
    f64 = 12,
};

/// Name of a type: "u32", "string".
[[nodiscard]] constexpr std::string_view name_of(gguf_type type) noexcept {
    constexpr std::string_view names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                          "bool", "string", "array", "u64", "i64", "f64"};
    const auto index = static_cast<std::uint32_t>(type);
    return index < std::size(names) ? names[index] : "?";
}

/// Bytes of a number or a bool; 0 for strings, arrays and unknown types.
[[nodiscard]] constexpr std::size_t gguf_bytes(gguf_type type) noexcept {
    constexpr std::uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const auto index = static_cast<std::uint32_t>(type);
    return index < std::size(bytes) ? bytes[index] : 0;
}

namespace detail {

/// Arrays inside arrays, at most.
inline constexpr int gguf_depth = 8;

/// End of the value of this type at `at`; none if it is not complete, has an unknown type or is nested too deeply.
/// Requires: at <= file.size(). Cost: O(1) for numbers and arrays of numbers, else one step for each string.
KVCACHE_LAZY [[nodiscard]] inline std::optional<std::size_t> gguf_end(std::span<const std::byte> file, std::size_t at,
                                                                      gguf_type type, int depth = 0) {
    const std::size_t left = file.size() - at;
    if (type == gguf_type::string) {
        if (left < 8)
            return std::nullopt;
        const auto length = load_little<std::uint64_t>(file, at);
        return length > left - 8 ? std::nullopt : std::optional(at + 8 + static_cast<std::size_t>(length));
    }
    if (type != gguf_type::array) {
        const std::size_t bytes = gguf_bytes(type);
        return bytes == 0 || bytes > left ? std::nullopt : std::optional(at + bytes);
    }
    if (left < 12 || depth == gguf_depth)
        return std::nullopt;
    const auto element = static_cast<gguf_type>(load_little<std::uint32_t>(file, at));
    const auto count = load_little<std::uint64_t>(file, at + 4);
    at += 12;
    if (const std::size_t bytes = gguf_bytes(element); bytes != 0)
        return count > (file.size() - at) / bytes ? std::nullopt
                                                  : std::optional(at + static_cast<std::size_t>(count) * bytes);
    if (element != gguf_type::string && element != gguf_type::array)
        return std::nullopt;
    for (std::uint64_t i = 0; i < count; ++i) { // ends early: every element has 8 bytes or more
        const auto end = gguf_end(file, at, element, depth + 1);
        if (!end)
            return std::nullopt;
        at = *end;
    }
    return at;
}

} // namespace detail

/// A metadata value, viewed in the bytes of the file, which must outlive it.
class gguf_value {
public:
    gguf_value() = default;

    /// Views the value in its whole encoding. Requires: it is complete (gguf_header::parse checks it).
    gguf_value(gguf_type type, std::span<const std::byte> bytes) noexcept : type_(type), bytes_(bytes) {}

    [[nodiscard]] gguf_type type() const noexcept { return type_; }

    /// Its encoding in the file.
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

    /// An integer of any width; none for other types and for negative numbers.
    [[nodiscard]] std::optional<std::uint64_t> count() const noexcept {
        const auto number = integer();
        return number && (type_ == gguf_type::u64 || *number >= 0) ? std::optional(static_cast<std::uint64_t>(*number))
                                                                   : std::nullopt;
    }

    /// An integer or a floating-point number; none for other types.
    [[nodiscard]] std::optional<double> number() const noexcept {
        if (type_ == gguf_type::f32)
            return static_cast<double>(std::bit_cast<float>(load_little<std::uint32_t>(bytes_, 0)));
        if (type_ == gguf_type::f64)
            return std::bit_cast<double>(load_little<std::uint64_t>(bytes_, 0));
        const auto whole = integer();
        if (!whole)
            return std::nullopt;
        return type_ == gguf_type::u64 ? static_cast<double>(static_cast<std::uint64_t>(*whole))
                                       : static_cast<double>(*whole);
    }

    [[nodiscard]] std::optional<bool> flag() const noexcept {
        return type_ == gguf_type::boolean ? std::optional(bytes_[0] != std::byte{0}) : std::nullopt;
    }

    [[nodiscard]] std::optional<std::string_view> text() const noexcept {
        if (type_ != gguf_type::string)
            return std::nullopt;
        return std::string_view(reinterpret_cast<const char*>(bytes_.data()) + 8, bytes_.size() - 8);
    }

    /// Type of the elements of an array. Requires: type() is array.
    [[nodiscard]] gguf_type element() const {
        expects(type_ == gguf_type::array, "only an array has elements");
        return static_cast<gguf_type>(load_little<std::uint32_t>(bytes_, 0));
    }
    /// Number of elements of an array; 0 for other types.
    [[nodiscard]] std::size_t size() const noexcept {
        return type_ == gguf_type::array ? static_cast<std::size_t>(load_little<std::uint64_t>(bytes_, 4)) : 0;
    }

    /// Calls `use(value)` for each element of an array; does nothing for other types.
    template <class Use>
    void each(Use use) const {
        std::size_t at = 12;
        for (std::size_t i = 0, n = size(); i < n; ++i) {
            const auto end = detail::gguf_end(bytes_, at, element());
            expects(end.has_value(), "the elements of an array were checked when its file was opened");
            use(gguf_value(element(), bytes_.subspan(at, *end - at)));
            at = *end;
        }
    }

private:
    // An unsigned 64-bit number keeps its bits.
    [[nodiscard]] std::optional<std::int64_t> integer() const noexcept {
        switch (type_) {
        case gguf_type::u8:
            return load_little<std::uint8_t>(bytes_, 0);
        case gguf_type::i8:
            return static_cast<std::int8_t>(load_little<std::uint8_t>(bytes_, 0));
        case gguf_type::u16:
            return load_little<std::uint16_t>(bytes_, 0);
        case gguf_type::i16:
            return static_cast<std::int16_t>(load_little<std::uint16_t>(bytes_, 0));
        case gguf_type::u32:
            return load_little<std::uint32_t>(bytes_, 0);
        case gguf_type::i32:
            return static_cast<std::int32_t>(load_little<std::uint32_t>(bytes_, 0));
        case gguf_type::u64:
        case gguf_type::i64:
            return static_cast<std::int64_t>(load_little<std::uint64_t>(bytes_, 0));
        case gguf_type::f32:
        case gguf_type::f64:
        case gguf_type::boolean:
        case gguf_type::string:
        case gguf_type::array:
            break;
        }
        return std::nullopt;
    }

    gguf_type type_ = gguf_type::u8;
    std::span<const std::byte> bytes_ = {};
};

}} // namespace kvcache
