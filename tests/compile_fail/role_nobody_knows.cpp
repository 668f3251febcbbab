// SPDX-License-Identifier: MIT
// message: policy<watcher>|watcher.*known_role
#include <kvcache/observer/concept.hpp>

struct my_role;
struct watcher {
#ifdef KVCACHE_MUST_FAIL
    using role = my_role;
#else
    using role = kvcache::observer_role;
#endif
    struct state {
        void on(const kvcache::event&) {}
    };
    state open() const {
        return {};
    }
};
static_assert(kvcache::policy<watcher>);
