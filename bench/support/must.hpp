// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <stdexcept>
#include <utility>

namespace bench {

/// Returns the value, or throws its error as runtime_error: a benchmark stops at the first failure.
template <class T>
[[nodiscard]] T must(kvcache::result<T> made) {
    if (!made)
        throw std::runtime_error(made.error().field + ": " + made.error().message);
    return std::move(*made);
}
inline void must(const kvcache::result<void>& done) {
    if (!done)
        throw std::runtime_error(done.error().field + ": " + done.error().message);
}

} // namespace bench
