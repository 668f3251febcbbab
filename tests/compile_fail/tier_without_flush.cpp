// SPDX-License-Identifier: MIT
// message: mine.*a tier's state needs: .*result<void> flush
// within: 5
#include <kvcache/cache.hpp>
#include <kvcache/tier.hpp>

struct mine {
    using role = kvcache::tier_role;
    struct state {
        kvcache::result<bool> read(const kvcache::sha256_digest&, const auto& use);
        kvcache::result<void> put(const kvcache::tier_entry&, std::span<const std::span<const std::byte>>);
        bool contains(const kvcache::sha256_digest&);
        kvcache::result<void> erase(const kvcache::sha256_digest&);
#ifndef KVCACHE_MUST_FAIL
        kvcache::result<void> flush();
#endif
        kvcache::result<void> status() const;
        kvcache::tier_counts counts() const;
    };
    state open() const;
};
static_assert(sizeof(kvcache::cache<mine>) > 0);
