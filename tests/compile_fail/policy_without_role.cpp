// SPDX-License-Identifier: MIT
// message: nameless.*a policy names its role
// within: 5
#include <kvcache/cache.hpp>

struct nameless {
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
auto cache_of_nameless = kvcache::make_cache({{.layers = 2}, {.bytes = 1 << 20}}, nameless{});
