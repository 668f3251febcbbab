// SPDX-License-Identifier: MIT
// message: unlock
#include <kvcache/locking/concept.hpp>

struct mine {
    using role = kvcache::locking_role;
    struct state {
        void lock();
#ifndef KVCACHE_MUST_FAIL
        void unlock();
#endif
    };
};
static_assert(kvcache::locking_policy<mine>);
