// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <concepts>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace kvcache::inline KVCACHE_ABI {

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
    result(kvcache::error reason) : reason_(std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return !reason_; }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        expects(!has_value(), "a result is asked for its error only when it has no value");
        return *reason_;
    }

private:
    std::optional<kvcache::error> reason_;
};

} // namespace kvcache
