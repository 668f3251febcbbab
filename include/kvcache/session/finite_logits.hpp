// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>

#include <algorithm>
#include <cmath>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Checks one row of logits, (vocabulary). Errors: malformed, if one is NaN or infinite. Cost: O(vocabulary).
KVCACHE_LAZY [[nodiscard]] inline result<void> check_finite(std::span<const float> logits) {
    if (std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
        return {};
    return error{error_code::malformed, "logits", "the model gave a logit that is not finite; its weights are damaged"};
}

}}} // namespace kvcache::detail
