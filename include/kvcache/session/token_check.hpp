// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/result.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Checks tokens that are to run: there is one, and all are in the vocabulary. Errors: out_of_range, in `field`. Cost:
/// O(tokens).
KVCACHE_LAZY [[nodiscard]] inline result<void> check_tokens(std::span<const token_id> tokens, std::size_t vocabulary,
                                                            const char* field) {
    if (tokens.empty())
        return error{error_code::out_of_range, field, "there is no token to run"};
    for (const token_id token : tokens)
        if (index_of(token) < 0 || static_cast<std::size_t>(index_of(token)) >= vocabulary)
            return error{error_code::out_of_range, field,
                         "token " + std::to_string(index_of(token)) + " is outside the vocabulary of " +
                             std::to_string(vocabulary)};
    return {};
}

}}} // namespace kvcache::detail
