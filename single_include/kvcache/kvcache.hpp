// SPDX-License-Identifier: MIT
// Made by tools/amalgamate.py from include/kvcache/: edit there.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

// ---- kvcache/core/contract.hpp ------------------------------------------------------------------------------------

// On in debug builds; define KVCACHE_CONTRACTS as 1 or 0 to choose.
#if !defined(KVCACHE_CONTRACTS)
#if defined(NDEBUG)
#define KVCACHE_CONTRACTS 0
#else
#define KVCACHE_CONTRACTS 1
#endif
#endif

namespace kvcache {

/// A caller's mistake, thrown where contract checks are on.
class contract_violation : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

/// Checks what a caller must hold. Off in release builds unless KVCACHE_CONTRACTS is 1.
/// Throws: contract_violation, with `what` as its words.
constexpr void expects([[maybe_unused]] bool holds, [[maybe_unused]] const char* what) {
#if KVCACHE_CONTRACTS
    if (!holds)
        throw contract_violation(what);
#endif
}

} // namespace kvcache

// ---- kvcache/core/id.hpp ------------------------------------------------------------------------------------------

namespace kvcache {

/// A page of keys and values in a page pool.
enum class page_id : std::uint32_t {};

/// An entry that an eviction policy ranks: a page, a session, a record of a tier.
enum class slot_id : std::uint32_t {};

/// A token of a tokenizer's vocabulary.
enum class token_id : std::int32_t {};

/// A layer of a model, counted from the input.
enum class layer_id : std::uint32_t {};

/// A key and value head.
enum class head_id : std::uint32_t {};

/// The number behind an identifier.
[[nodiscard]] constexpr std::uint32_t index_of(page_id page) noexcept {
    return static_cast<std::uint32_t>(page);
}
[[nodiscard]] constexpr std::uint32_t index_of(slot_id slot) noexcept {
    return static_cast<std::uint32_t>(slot);
}
[[nodiscard]] constexpr std::int32_t index_of(token_id token) noexcept {
    return static_cast<std::int32_t>(token);
}
[[nodiscard]] constexpr std::uint32_t index_of(layer_id layer) noexcept {
    return static_cast<std::uint32_t>(layer);
}
[[nodiscard]] constexpr std::uint32_t index_of(head_id head) noexcept {
    return static_cast<std::uint32_t>(head);
}

} // namespace kvcache

// ---- kvcache/core/result.hpp --------------------------------------------------------------------------------------

namespace kvcache {

/// What kind of fault of the world an error reports.
enum class error_code {
    not_found,     ///< A file, tensor or field that is not there.
    io,            ///< The system refused to open, read, map or write.
    truncated,     ///< Shorter than its own header says.
    malformed,     ///< Not of the format: syntax, offsets, encodings.
    mismatched,    ///< Well formed, but not what was asked for: dtype, shape, identity.
    unsupported,   ///< Well formed, and something this library does not run.
    out_of_memory, ///< No page or memory left, and nothing that may leave.
    out_of_range,  ///< A token, position or length past its limit.
    cancelled,     ///< Stopped on the caller's request.
};

/// A typed error: its kind, the name of the failing field or file, and words a user can act on.
struct error {
    error_code code = error_code::malformed;
    std::string field = {};   ///< "rope_scaling.type", "model.safetensors", "pages": what failed.
    std::string message = {}; ///< One sentence, with the numbers.

    friend bool operator==(const error&, const error&) = default;
};

/// A value, or the error that kept it from being made.
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
    result(kvcache::error reason) : held_(std::in_place_index<1>, std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return held_.index() == 0; }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: has_value().
    [[nodiscard]] T& operator*() & { return value(); }
    [[nodiscard]] const T& operator*() const& { return value(); }
    [[nodiscard]] T&& operator*() && { return std::move(value()); }
    [[nodiscard]] T* operator->() { return &value(); }
    [[nodiscard]] const T* operator->() const { return &value(); }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        expects(!has_value(), "a result is asked for its error only when it has no value");
        return *std::get_if<1>(&held_);
    }

private:
    [[nodiscard]] T& value() {
        expects(has_value(), "a result is read only when it has a value");
        return *std::get_if<0>(&held_);
    }
    [[nodiscard]] const T& value() const {
        expects(has_value(), "a result is read only when it has a value");
        return *std::get_if<0>(&held_);
    }

    std::variant<T, kvcache::error> held_;
};

/// Success, or the error that prevented it.
template <>
class [[nodiscard]] result<void> {
public:
    using value_type = void;

    result() = default;
    result(kvcache::error reason) : held_(std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return held_.index() == 0; }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        expects(!has_value(), "a result is asked for its error only when it has no value");
        return *std::get_if<1>(&held_);
    }

private:
    std::variant<std::monostate, kvcache::error> held_;
};

} // namespace kvcache

// ---- kvcache/core/shape.hpp ---------------------------------------------------------------------------------------

namespace kvcache {

/// The tokens of one tile: one SIMD vector of scores.
inline constexpr std::uint32_t tile_tokens = 16;

/// The extents of one page of keys and values.
struct page_shape {
    std::uint32_t layers = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    std::uint32_t tokens = 64; ///< Positions a page; a multiple of 16.

    friend constexpr bool operator==(const page_shape&, const page_shape&) = default;

    /// Whether a page of this shape can exist.
    [[nodiscard]] constexpr bool valid() const noexcept {
        return layers > 0 && kv_heads > 0 && head_dim > 0 && tokens > 0 && tokens % tile_tokens == 0;
    }
};

/// The memory a cache may fill with pages.
struct budget {
    std::size_t bytes = 0;
};

inline namespace literals {
[[nodiscard]] constexpr std::size_t operator""_KiB(unsigned long long n) {
    return std::size_t{n} << 10;
}
[[nodiscard]] constexpr std::size_t operator""_MiB(unsigned long long n) {
    return std::size_t{n} << 20;
}
[[nodiscard]] constexpr std::size_t operator""_GiB(unsigned long long n) {
    return std::size_t{n} << 30;
}
} // namespace literals

} // namespace kvcache

// ---- kvcache/core/tensor.hpp --------------------------------------------------------------------------------------

// GCC 12 sees uninitialised values inside its own AVX-512 intrinsics, wherever they are inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Core>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstddef>
#include <span>

namespace kvcache {

/// A dense row-major matrix of float32. (rows, columns)
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Somebody else's row-major matrix, to read. (rows, columns)
using matrix_view = Eigen::Ref<const matrix>;

/// Row `row` of `m` as contiguous numbers. (columns)
[[nodiscard]] inline std::span<const float> row_of(const matrix& m, std::size_t row) {
    return {m.data() + row * static_cast<std::size_t>(m.cols()), static_cast<std::size_t>(m.cols())};
}
[[nodiscard]] inline std::span<float> row_of(matrix& m, std::size_t row) {
    return {m.data() + row * static_cast<std::size_t>(m.cols()), static_cast<std::size_t>(m.cols())};
}

} // namespace kvcache

// ---- kvcache/core/version.hpp -------------------------------------------------------------------------------------

/// The one place where the version lives; CMake reads it from here.
#define KVCACHE_VERSION_MAJOR 0
#define KVCACHE_VERSION_MINOR 1
#define KVCACHE_VERSION_PATCH 0

namespace kvcache {

/// The revision of the numeric contract: the order of every reduction, the polynomials, the tile and split
/// lengths. It changes whenever the same inputs may give other bits, and it is part of a cache's identity.
inline constexpr unsigned numeric_contract_revision = 1;

} // namespace kvcache

// ---- kvcache/kvcache.hpp ------------------------------------------------------------------------------------------

// Everything that needs only Eigen, xsimd and xxHash. Readers of JSON and text have doors of their own.
