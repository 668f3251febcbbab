// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/concept.hpp>

#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Returns the name of an event kind.
[[nodiscard]] constexpr std::string_view name_of(event_kind kind) noexcept {
    switch (kind) {
    case event_kind::matched:
        return "matched";
    case event_kind::stored:
        return "stored";
    case event_kind::published:
        return "published";
    case event_kind::copied:
        return "copied";
    case event_kind::evicted:
        return "evicted";
    case event_kind::refused:
        break;
    }
    return "refused";
}

}}} // namespace kvcache::observer
