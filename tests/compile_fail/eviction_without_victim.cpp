// SPDX-License-Identifier: MIT
// message: victim
#include <kvcache/eviction/concept.hpp>

struct mine {
    using role = kvcache::eviction_role;
    struct state {
        void admit(kvcache::slot_id, const kvcache::eviction_entry&);
        void touch(kvcache::slot_id);
        void erase(kvcache::slot_id);
#ifndef KVCACHE_MUST_FAIL
        std::optional<kvcache::slot_id> victim(const auto& is_evictable);
#endif
    };
    state open(kvcache::eviction_capacity capacity) const;
};
static_assert(kvcache::eviction_policy<mine>);
