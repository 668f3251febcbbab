// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/contract.hpp>

#include <concepts>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Concatenates strings. A chain of string additions takes several times as long to compile.
[[nodiscard]] inline std::string joined(std::initializer_list<std::string_view> pieces) {
    std::string whole;
    for (const std::string_view piece : pieces)
        whole += piece;
    return whole;
}

}}} // namespace kvcache::detail

namespace kvcache { inline namespace KVCACHE_ABI {

/// The kind of an error.
enum class error_code {
    not_found,     ///< A file, tensor or field does not exist.
    io,            ///< The system refused to open, read, map or write.
    truncated,     ///< The data is shorter than its own header says.
    malformed,     ///< The data is invalid: syntax, offsets, encodings.
    mismatched,    ///< Well formed, but not what was expected: dtype, shape, identity.
    unsupported,   ///< Well formed, but not supported by this library.
    out_of_memory, ///< No page or memory is left, and no page can be evicted.
    out_of_range,  ///< A token, position or length is past its limit.
    pending,       ///< Another lease computes it now; it will be cached.
    cancelled,     ///< Stopped on the caller's request.
};

/// A typed error: its kind, the name of the failing field or file, and a message a user can act on.
struct error {
    error_code code = error_code::malformed;
    std::string field = {};   ///< What failed: "rope_scaling.type", "model.safetensors", "pages".
    std::string message = {}; ///< One sentence, with the values.

    friend bool operator==(const error&, const error&) = default;
};

/// A value, or the error that prevented it.
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
        require(!has_value(), "a result is asked for its error only when it has no value");
        return *std::get_if<1>(&held_);
    }

private:
    [[nodiscard]] T& value() {
        require(has_value(), "a result is read only when it has a value");
        return *std::get_if<0>(&held_);
    }
    [[nodiscard]] const T& value() const {
        require(has_value(), "a result is read only when it has a value");
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
    result(kvcache::error reason) : reason_(std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return !reason_; }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        require(!has_value(), "a result is asked for its error only when it has no value");
        return *reason_;
    }

private:
    std::optional<kvcache::error> reason_;
};

}} // namespace kvcache
