// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/compose.hpp>
#include <kvcache/cache/tenant.hpp>
#include <kvcache/cache/tenant_access.hpp>
#include <kvcache/core/exceptions.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A cache shared by several tenants, none of which can find what another has stored. It has no `match` and no `open`;
/// only its tenants do. Pages are shared within a tenant by content, as in any cache. Memory is shared by all, up to
/// each tenant's quota. With locking::mutex any number of threads may call it at once, otherwise one at a time.
/// Requires: it outlives its tenants. It does not move.
template <class Cache>
class basic_tenant_cache {
public:
    using tenant = basic_tenant<Cache>;

    /// For at most `most` tenants.
    template <class... Given>
    basic_tenant_cache(std::size_t most, identity id, page_shape shape, cache_limits limit,
                       const std::tuple<Given...>& given)
        : most_(most),
          cache_(detail::opener<Cache>::open({shape, limit, std::move(id), most + 1}, given)),
          shared_(tenant_access::add(cache_, {}, std::numeric_limits<std::size_t>::max())) {}

    /// Opens the tenant of this salt, with a quota of `quota` pages; an existing tenant gets the new quota. If there
    /// are `most` tenants already, it takes the place of one that has no views, the one with the fewest pages, whose
    /// pages are evicted. Errors: out_of_range, if all have views. Cost: O(tenants), and for a replaced tenant O(its
    /// pages * all pages).
    [[nodiscard]] result<tenant> open(const tenant_salt& salt, std::size_t quota) {
        const std::lock_guard guard(lock_);
        if (const auto known = accounts_.find(salt.bytes()); known != accounts_.end()) {
            tenant_access::set_quota(cache_, known->second.number, quota);
            return view_of(known->second);
        }
        const auto replaced = accounts_.size() == most_ ? replaceable() : accounts_.end();
        if (accounts_.size() == most_ && replaced == accounts_.end())
            return error{error_code::out_of_range, "tenants",
                         "there are " + std::to_string(most_) + " tenants already, as many as there may be"};
        const auto place = accounts_.emplace(salt.bytes(), account{}).first;
        detail::scope_guard undo([&] { accounts_.erase(place); });
        if (replaced == accounts_.end()) {
            place->second.number = tenant_access::add(cache_, salt.bytes(), quota);
        } else {
            place->second.number = replaced->second.number;
            tenant_access::replace(cache_, replaced->second.number, salt.bytes(), quota);
            accounts_.erase(replaced);
        }
        undo.dismiss();
        return view_of(place->second);
    }

    /// The view of what belongs to no tenant: all who use it share what is stored.
    [[nodiscard]] tenant shared() { return tenant(cache_, shared_, nullptr); }

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
    struct account {
        std::uint32_t number = 0;
        std::shared_ptr<const std::uint64_t> views = std::make_shared<const std::uint64_t>();
        std::uint64_t used = 0; // when it was last opened
    };
    using accounts = std::map<std::string, account, std::less<>>;

    [[nodiscard]] tenant view_of(account& of) {
        of.used = ++opened_;
        return tenant(cache_, of.number, of.views);
    }

    // Returns a tenant without views and, from now on, without pages: the one with the fewest pages, of those the one
    // not opened for the longest time.
    [[nodiscard]] typename accounts::iterator replaceable() {
        auto found = accounts_.end();
        std::size_t fewest = 0;
        for (auto each = accounts_.begin(); each != accounts_.end(); ++each) {
            if (each->second.views.use_count() > 1)
                continue;
            const std::size_t pages = tenant_access::usage(cache_, each->second.number).pages;
            if (found == accounts_.end() ||
                std::pair(pages, each->second.used) < std::pair(fewest, found->second.used)) {
                found = each;
                fewest = pages;
            }
        }
        return found != accounts_.end() && tenant_access::clear(cache_, found->second.number) ? found : accounts_.end();
    }

    std::size_t most_;
    Cache cache_;
    std::uint32_t shared_; // has a root in the index like every tenant, so that no tokens lead from it to a tenant's
    typename Cache::locking_type lock_;
    accounts accounts_;
    std::uint64_t opened_ = 0;
};

/// Opens a cache for at most `most` tenants from policies given by value in any order.
template <class... Ps>
[[nodiscard]] basic_tenant_cache<cache<Ps...>> make_tenant_cache(std::size_t most, identity id, page_shape shape,
                                                                 cache_limits limit, Ps... policies) {
    return {most, std::move(id), shape, limit, std::tuple(std::move(policies)...)};
}

}} // namespace kvcache
