// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/layers/concept.hpp>

#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI { namespace layers {

/// All layers keep keys and values of every token, in the pages of the cache's shape. Standard.
struct uniform {
    using role = layers_role;

    /// There are no blocks besides the pages.
    struct state {
        static constexpr bool several = false;
    };
    [[nodiscard]] state open(const layers_capacity&) const { return {}; }
};

static_assert(layers_policy<uniform>);

}}} // namespace kvcache::layers
