// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/machine.hpp>

#include <atomic>
#include <concepts>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A violated precondition.
class contract_violation : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

/// Called with the rule that was broken. It may throw, log, or end the program.
using violation_handler = void (*)(const char* rule);

namespace detail {

inline std::atomic<violation_handler> on_violation{nullptr};

} // namespace detail

/// Installs the function that is called at each contract violation; null for none. Returns the one before. If the
/// function returns, contract_violation is thrown; in a program without exceptions std::terminate is called.
inline violation_handler set_violation_handler(violation_handler handler) noexcept {
    return detail::on_violation.exchange(handler);
}

namespace detail {

/// Calls the violation handler, then throws contract_violation, or ends a program without exceptions.
KVCACHE_NOINLINE KVCACHE_COLD [[noreturn]] inline void violate(const char* what) {
    if (const violation_handler handler = on_violation.load())
        handler(what);
#if defined(__cpp_exceptions)
    throw contract_violation(what);
#else
    std::terminate();
#endif
}

} // namespace detail

/// Checks a precondition in every build: one that guards memory and costs little where it is checked.
/// Throws: contract_violation, with `what` as its message.
constexpr void require(bool holds, const char* what) {
    if (!holds)
        detail::violate(what);
}

/// Checks a precondition. Off in release builds unless KVCACHE_CONTRACTS is 1.
/// Throws: contract_violation, with `what` as its message.
constexpr void expects([[maybe_unused]] bool holds, [[maybe_unused]] const char* what) {
#if KVCACHE_CONTRACTS
    if (!holds)
        detail::violate(what);
#endif
}

namespace detail {

/// Concatenates strings. A chain of string additions takes several times as long to compile.
[[nodiscard]] inline std::string joined(std::initializer_list<std::string_view> pieces) {
    std::string whole;
    for (const std::string_view piece : pieces)
        whole += piece;
    return whole;
}

} // namespace detail

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

namespace detail {

/// An error on the heap, or none. Copies are deep.
class maybe_error : public std::unique_ptr<const error> {
public:
    maybe_error() = default;
    maybe_error(error one) : unique_ptr(std::make_unique<const error>(std::move(one))) {}
    maybe_error(const maybe_error& other) : unique_ptr(other ? std::make_unique<const error>(*other) : nullptr) {}
    maybe_error(maybe_error&&) noexcept = default;
    maybe_error& operator=(maybe_error other) noexcept { return swap(other), *this; }
};

} // namespace detail

/// A value, or the error that prevented it.
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    result(T value) : value_(std::in_place, std::move(value)) {}
    result(kvcache::error reason) : reason_(std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return value_.has_value(); }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: has_value().
    [[nodiscard]] T& operator*() & { return require(has_value(), no_value), *value_; }
    [[nodiscard]] const T& operator*() const& { return require(has_value(), no_value), *value_; }
    [[nodiscard]] T&& operator*() && { return require(has_value(), no_value), *std::move(value_); }
    [[nodiscard]] T* operator->() { return &**this; }
    [[nodiscard]] const T* operator->() const { return &**this; }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        require(reason_ != nullptr, "a result is asked for its error only when it has no value");
        return *reason_;
    }

private:
    static constexpr const char* no_value = "a result is read only when it has a value";

    // One of the two. A std::variant takes a tenth more time to compile.
    std::optional<T> value_;
    detail::maybe_error reason_;
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
        require(reason_ != nullptr, "a result is asked for its error only when it has no value");
        return *reason_;
    }

private:
    detail::maybe_error reason_;
};

// The only header that throws and catches. In a program without exceptions nothing can be caught: a failed allocation
// ends the program in operator new.

namespace detail {

/// Calls `body`. Returns false if it threw an `Exception`; other exceptions propagate.
template <class Exception, class Body>
[[nodiscard]] bool completes(Body&& body) {
#if defined(__cpp_exceptions)
    try {
        body();
        return true;
    } catch (const Exception&) {
        return false;
    }
#else
    body();
    return true;
#endif
}

/// Calls `body` and discards any exception.
template <class Body>
void ignore_exceptions(Body&& body) noexcept {
#if defined(__cpp_exceptions)
    try {
        body();
    } catch (...) {
    }
#else
    body();
#endif
}

/// Calls `body`. Returns the exception it threw; null if none.
template <class Body>
[[nodiscard]] std::exception_ptr exception_of(Body&& body) noexcept {
#if defined(__cpp_exceptions)
    try {
        body();
    } catch (...) {
        return std::current_exception();
    }
#else
    body();
#endif
    return nullptr;
}

/// Throws std::bad_alloc.
[[noreturn]] inline void throw_bad_alloc() {
#if defined(__cpp_exceptions)
    throw std::bad_alloc();
#else
    std::terminate();
#endif
}

/// Calls `undo` when it is destroyed, unless it was dismissed.
template <class Undo>
class [[nodiscard]] scope_guard {
public:
    explicit scope_guard(Undo undo) : undo_(std::move(undo)) {}
    scope_guard(const scope_guard&) = delete;
    scope_guard& operator=(const scope_guard&) = delete;
    ~scope_guard() {
        if (armed_)
            undo_();
    }

    void dismiss() noexcept { armed_ = false; }

private:
    Undo undo_;
    bool armed_ = true;
};

} // namespace detail

}} // namespace kvcache
