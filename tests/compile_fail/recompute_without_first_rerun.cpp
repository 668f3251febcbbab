// SPDX-License-Identifier: MIT
// message: first_computed
#include <kvcache/recompute/concept.hpp>

struct mine {
    using role = kvcache::recompute_role;
    struct state {
#ifndef KVCACHE_MUST_FAIL
        std::size_t first_computed(std::size_t hit, std::size_t total) const;
#endif
    };
    state open(kvcache::page_shape) const;
};
static_assert(kvcache::recompute_policy<mine>);
