// SPDX-License-Identifier: MIT
// message: root
#include <kvcache/hash/concept.hpp>

struct mine {
    using role = kvcache::hash_role;
    struct state {
#ifndef KVCACHE_MUST_FAIL
        kvcache::digest root() const;
#endif
        kvcache::digest chain(kvcache::digest, std::span<const kvcache::token_id>) const;
    };
    state open(const kvcache::identity&) const;
};
static_assert(kvcache::hash_policy<mine>);
