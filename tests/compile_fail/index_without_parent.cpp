// SPDX-License-Identifier: MIT
// message: parent
#include <kvcache/index/concept.hpp>

struct mine {
    using role = kvcache::index_role;
    struct state {
        kvcache::index_match match(std::span<const kvcache::token_id>) const;
        kvcache::insertion insert(std::optional<kvcache::page_id>, std::span<const kvcache::token_id>,
                                  kvcache::page_id);
        void erase(kvcache::page_id);
        bool contains(kvcache::page_id) const;
        bool leaf(kvcache::page_id) const;
#ifndef KVCACHE_MUST_FAIL
        std::optional<kvcache::page_id> parent(kvcache::page_id) const;
#endif
        std::span<const kvcache::token_id> run(kvcache::page_id) const;
    };
    state open(kvcache::page_shape, std::size_t) const;
};
static_assert(kvcache::index_policy<mine>);
