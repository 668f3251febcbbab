// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The owner of each page, and what its tenant may have. Tenants are numbered from one; number zero stands for a cache
/// without tenants.
///
/// With fair tenants, pages are evicted from the tenant that has the most, and a tenant takes none of another one that
/// has no more than itself (max-min fairness), unless no prompt of that one was looked up while sixteen times the
/// cache's pages were taken: what is not used for long is shared.
class tenant_quotas {
public:
    tenant_quotas(std::size_t pages, std::size_t most, bool fair) : owners_(pages, 0), accounts_(1), fair_(fair) {
        accounts_.reserve(most + 1);
        seen_.reserve(most + 1);
        seen_.push_back(0);
    }

    [[nodiscard]] std::size_t size() const noexcept { return accounts_.size() - 1; }
    [[nodiscard]] const tenant_usage& usage(std::uint32_t tenant) const { return accounts_[tenant]; }

    /// Adds a tenant and returns its number. Requires: fewer tenants than the maximum.
    std::uint32_t add(std::size_t quota) {
        expects(accounts_.size() < accounts_.capacity(), "there are fewer tenants than the maximum");
        accounts_.push_back({.quota = quota});
        seen_.push_back(taken_);
        return static_cast<std::uint32_t>(size());
    }
    void set_quota(std::uint32_t tenant, std::size_t quota) { accounts_[tenant].quota = quota; }

    /// A prompt of a tenant is looked up.
    void see(std::uint32_t tenant) noexcept { seen_[tenant] = taken_; }
    void take(page_id page, std::uint32_t tenant) noexcept {
        owners_[index_of(page)] = tenant;
        ++accounts_[tenant].pages;
        ++taken_;
    }
    void reclaim(page_id page) noexcept { --account(page).pages; }
    void mark_evictable(page_id page) noexcept { ++account(page).evictable; }
    void mark_in_use(page_id page) noexcept { --account(page).evictable; }

    /// Returns whether the tenant's quota is used up.
    [[nodiscard]] bool full(std::uint32_t tenant) const noexcept {
        return accounts_[tenant].pages >= accounts_[tenant].quota;
    }
    [[nodiscard]] bool owns(std::uint32_t tenant, page_id page) const noexcept {
        return owners_[index_of(page)] == tenant;
    }

    /// Whose page is evicted for one of a tenant: 0 for anyone's; none, if there is none that it may take. Cost:
    /// O(tenants) with fair tenants, else O(1).
    [[nodiscard]] std::optional<std::uint32_t> source(std::uint32_t tenant) const noexcept {
        if (!fair_ || tenant == 0)
            return 0u;
        std::optional<std::uint32_t> most;
        for (std::uint32_t each = 1; each < accounts_.size(); ++each)
            if (accounts_[each].evictable > 0 && gives(each, tenant, accounts_[tenant].pages) &&
                (!most || accounts_[each].pages > accounts_[*most].pages))
                most = each;
        return most;
    }

    /// The number of pages that the tenant may allocate, of `free` ones and `evictable` ones of all tenants, less those
    /// set `aside`. Its own evictable pages count. Cost: as source, times the logarithm of the pages.
    [[nodiscard]] std::size_t available(std::uint32_t tenant, std::size_t free, std::size_t evictable,
                                        std::size_t aside) const noexcept {
        const tenant_usage& own = accounts_[tenant];
        const std::size_t in_use = own.pages - own.evictable;
        const std::size_t all = fair_ && tenant != 0 ? free + own.evictable + others(tenant, free) : free + evictable;
        return std::min(all - std::min(all, aside), own.quota - std::min(own.quota, in_use));
    }

private:
    [[nodiscard]] tenant_usage& account(page_id page) noexcept { return accounts_[owners_[index_of(page)]]; }

    // Whether pages of a tenant are evicted for another one that has `pages`.
    [[nodiscard]] bool gives(std::uint32_t from, std::uint32_t to, std::size_t pages) const noexcept {
        return from == to || accounts_[from].pages > pages || taken_ - seen_[from] > 16 * owners_.size();
    }

    // The most pages that a tenant can take of others, after `free` ones: those that others give until they have no
    // more than it has.
    [[nodiscard]] std::size_t others(std::uint32_t tenant, std::size_t free) const noexcept {
        const auto given = [&](std::size_t level) { // until the tenant has so many pages
            std::size_t all = 0;
            for (std::uint32_t each = 1; each < accounts_.size(); ++each)
                if (each != tenant && accounts_[each].evictable > 0) {
                    const tenant_usage& its = accounts_[each];
                    const std::size_t over = its.pages >= level ? its.pages + 1 - level : 0;
                    all += gives(each, tenant, its.pages) ? its.evictable : std::min(its.evictable, over);
                }
            return all;
        };
        const std::size_t begin = accounts_[tenant].pages + free;
        std::size_t low = begin, high = owners_.size(); // of the pages that it can have
        while (low < high) {
            const std::size_t level = low + (high - low + 1) / 2;
            if (begin + given(level) >= level)
                low = level;
            else
                high = level - 1;
        }
        return low - begin;
    }

    std::vector<std::uint32_t> owners_; // by page
    std::vector<tenant_usage> accounts_;
    std::vector<std::uint64_t> seen_; // by tenant: the pages taken when it was last seen
    std::uint64_t taken_ = 0;
    bool fair_;
};

}} // namespace kvcache
