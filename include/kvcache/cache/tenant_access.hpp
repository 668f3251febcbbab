// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tenants of a cache, as a tenant cache administers them. Not for hosts. Each function takes the cache's lock.
/// Tenant 0 is the cache's own.
class tenant_access {
public:
    template <class Cache>
    static std::uint32_t add(Cache& cache, const std::string& salt, std::size_t quota) {
        const std::lock_guard guard(cache.lock_);
        identity own = cache.identity_;
        own.tenant = salt;
        cache.salts_.reserve(cache.salts_.size() + 1);
        std::string kept = salt;
        cache.tier_.set(cache.pages_.tenants().size() + 1, own);
        const std::uint32_t number = cache.pages_.add_tenant(cache.hash_.open(own).root(), quota);
        cache.salts_.push_back(std::move(kept));
        return number;
    }

    /// Evicts the idle pages of a tenant. Returns whether it has no pages left. Cost: O(its pages * all pages).
    template <class Cache>
    [[nodiscard]] static bool clear(Cache& cache, std::uint32_t tenant) {
        const std::lock_guard guard(cache.lock_);
        return cache.pages_.clear(tenant);
    }

    /// Gives the number of a tenant to another one. Requires: it has no pages, sequences or matches. Throws: bad_alloc;
    /// nothing has changed then.
    template <class Cache>
    static void replace(Cache& cache, std::uint32_t tenant, std::string salt, std::size_t quota) {
        const std::lock_guard guard(cache.lock_);
        identity own = cache.identity_;
        own.tenant = salt;
        const auto root = cache.hash_.open(own).root();
        cache.tier_.set(tenant, own);
        cache.pages_.replace_tenant(tenant, root, quota);
        cache.salts_[tenant - 1] = std::move(salt);
    }

    template <class Cache>
    static void set_quota(Cache& cache, std::uint32_t tenant, std::size_t quota) {
        const std::lock_guard guard(cache.lock_);
        cache.pages_.set_quota(tenant, quota);
    }

    template <class Cache>
    [[nodiscard]] static auto usage(const Cache& cache, std::uint32_t tenant) {
        const std::lock_guard guard(cache.lock_);
        return cache.pages_.tenants().usage(tenant);
    }

    /// The identity of what a tenant stores.
    template <class Cache>
    [[nodiscard]] static identity id(const Cache& cache, std::uint32_t tenant) {
        const std::lock_guard guard(cache.lock_);
        identity own = cache.identity_;
        if (tenant > 0)
            own.tenant = cache.salts_[tenant - 1];
        return own;
    }
};

}} // namespace kvcache
