// SPDX-License-Identifier: MIT
// message: policy<stranger>|stranger.*policy
#include <kvcache/observer/concept.hpp>

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
static_assert(kvcache::policy<stranger>);
