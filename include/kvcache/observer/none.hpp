// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/concept.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// No observer; it has no cost.
struct none {
    using role = observer_role;
    struct state {
        void on(const event&) noexcept {}
    };
    [[nodiscard]] state open() const { return {}; }
};

static_assert(observer_policy<none>);

}}} // namespace kvcache::observer
