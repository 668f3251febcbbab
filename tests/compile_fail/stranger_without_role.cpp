// SPDX-License-Identifier: MIT
// message: policy<Ps>.*stranger|stranger.*policy
#include <kvcache/cache/compose.hpp>

struct stranger {
#ifndef KVCACHE_MUST_FAIL
    using role = kvcache::observer_role;
#endif
    struct state {
        void on(const kvcache::event&) {}
    };
    state open() const {
        return {};
    }
};
auto cache = kvcache::make_cache(kvcache::page_shape{2, 2, 16, 16}, {1 << 20}, stranger{});
