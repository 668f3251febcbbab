// SPDX-License-Identifier: MIT
#pragma once

#include <stdexcept>

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
