// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/compose.hpp>
#include <kvcache/cache/tenant.hpp>
#include <kvcache/core/exceptions.hpp>

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

/// A cache shared by several tenants, none of which can find what another has stored. It has no `match` and no `open`;
/// only its tenants do. Pages are shared within a tenant by content, as in any cache. Memory is shared by all, up to
/// each tenant's quota. Requires: it outlives its tenants. It does not move.
template <class Cache>
class basic_tenant_cache {
public:
    using tenant = basic_tenant<Cache>;

    /// For at most `most` tenants.
    template <class... Given>
    basic_tenant_cache(std::size_t most, identity id, page_shape shape, cache_limits limit,
                       const std::tuple<Given...>& given)
        : most_(most), cache_(detail::opener<Cache>::open({shape, limit, std::move(id), most}, given)) {}

    /// Opens the tenant of this salt, with a quota of `quota` pages; an existing tenant gets the new quota.
    /// Errors: out_of_range, if there are `most` tenants already.
    [[nodiscard]] result<tenant> open(const tenant_salt& salt, std::size_t quota) {
        const std::lock_guard guard(lock_);
        if (const auto known = numbers_.find(salt.bytes()); known != numbers_.end()) {
            cache_access::set_quota(cache_, known->second, quota);
            return tenant(cache_, known->second);
        }
        if (numbers_.size() == most_)
            return error{error_code::out_of_range, "tenants",
                         "there are " + std::to_string(most_) + " tenants already, as many as there may be"};
        const auto place = numbers_.emplace(salt.bytes(), 0).first;
        detail::scope_guard undo([&] { numbers_.erase(place); });
        place->second = cache_access::add_tenant(cache_, salt.bytes(), quota);
        undo.dismiss();
        return tenant(cache_, place->second);
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return cache_.shape(); }
    /// The occupancy of the cache, for its operator only: it reveals the activity of all tenants.
    [[nodiscard]] cache_stats stats() const { return cache_.stats(); }
    [[nodiscard]] std::string describe() const { return cache_.describe(); }
    [[nodiscard]] auto& tier() noexcept { return cache_.tier(); }
    [[nodiscard]] auto tier_stats() const { return cache_.tier_stats(); }
    [[nodiscard]] result<void> check() const { return cache_.check(); }
    template <class Ask>
    void ask_observer(Ask&& ask) const {
        cache_.ask_observer(std::forward<Ask>(ask));
    }

private:
    std::size_t most_;
    Cache cache_;
    typename Cache::locking_type lock_;
    std::map<std::string, std::uint32_t, std::less<>> numbers_;
};

/// Opens a cache for at most `most` tenants from policies given by value in any order.
template <policy... Ps>
    requires one_policy_a_role<Ps...>
[[nodiscard]] basic_tenant_cache<cache<Ps...>> make_tenant_cache(std::size_t most, identity id, page_shape shape,
                                                                 cache_limits limit, Ps... policies) {
    return {most, std::move(id), shape, limit, std::tuple(std::move(policies)...)};
}

} // namespace kvcache
