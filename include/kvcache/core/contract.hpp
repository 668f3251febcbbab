// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <exception>
#include <stdexcept>

namespace kvcache::inline KVCACHE_ABI {

/// A violated precondition.
class contract_violation : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

namespace detail {

/// Throws contract_violation. Without exceptions it calls std::terminate, whose handler the program may set.
#if defined(__GNUC__)
[[gnu::cold, gnu::noinline]]
#endif
[[noreturn]] inline void
violate([[maybe_unused]] const char* what) {
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

} // namespace kvcache
