// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <exception>
#include <new>
#include <utility>

// The only header that throws and catches. In a program without exceptions nothing can be caught: a failed allocation
// ends the program in operator new.

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

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

}}} // namespace kvcache::detail
