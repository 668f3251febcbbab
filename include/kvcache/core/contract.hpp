// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <atomic>
#include <exception>
#include <stdexcept>

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
#if defined(__GNUC__)
[[gnu::cold, gnu::noinline]]
#endif
[[noreturn]] inline void
violate(const char* what) {
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

}} // namespace kvcache
