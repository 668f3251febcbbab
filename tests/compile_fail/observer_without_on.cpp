// SPDX-License-Identifier: MIT
// message: s\.on|'on'
#include <kvcache/observer/concept.hpp>

struct mine {
    using role = kvcache::observer_role;
    struct state {
#ifndef KVCACHE_MUST_FAIL
        void on(const kvcache::event&);
#endif
    };
    state open() const;
};
static_assert(kvcache::observer_policy<mine>);
