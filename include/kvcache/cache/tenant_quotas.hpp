// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The page usage of a tenant.
struct tenant_usage {
    std::size_t pages = 0;     ///< Pages of the tenant, in use or evictable.
    std::size_t evictable = 0; ///< Of these, pages without references, cached for its next match.
    std::size_t quota = std::numeric_limits<std::size_t>::max(); ///< Maximum number of pages.

    friend constexpr bool operator==(const tenant_usage&, const tenant_usage&) = default;
};

/// The owner of each page. Tenants are numbered from one; number zero stands for a cache without tenants.
class tenant_quotas {
public:
    tenant_quotas(std::size_t pages, std::size_t most) : owners_(pages, 0), accounts_(1) {
        accounts_.reserve(most + 1);
    }

    [[nodiscard]] std::size_t size() const noexcept { return accounts_.size() - 1; }
    [[nodiscard]] const tenant_usage& usage(std::uint32_t tenant) const { return accounts_[tenant]; }

    /// Adds a tenant and returns its number. Requires: fewer tenants than the maximum.
    std::uint32_t add(std::size_t quota) {
        expects(accounts_.size() < accounts_.capacity(), "there is room for one more tenant");
        accounts_.push_back({.quota = quota});
        return static_cast<std::uint32_t>(size());
    }
    void set_quota(std::uint32_t tenant, std::size_t quota) { accounts_[tenant].quota = quota; }

    void take(page_id page, std::uint32_t tenant) noexcept {
        owners_[index_of(page)] = tenant;
        ++accounts_[tenant].pages;
    }
    void give_back(page_id page) noexcept { --account(page).pages; }
    void rest(page_id page) noexcept { ++account(page).evictable; }
    void wake(page_id page) noexcept { --account(page).evictable; }

    /// Returns whether the tenant's quota is used up.
    [[nodiscard]] bool full(std::uint32_t tenant) const noexcept {
        return accounts_[tenant].pages >= accounts_[tenant].quota;
    }
    [[nodiscard]] bool owns(std::uint32_t tenant, page_id page) const noexcept {
        return owners_[index_of(page)] == tenant;
    }

    /// The number of available pages that the tenant may allocate. Its evictable pages count as available.
    [[nodiscard]] std::size_t room(std::uint32_t tenant, std::size_t available) const noexcept {
        const tenant_usage& own = accounts_[tenant];
        const std::size_t in_use = own.pages - own.evictable;
        return std::min(available, own.quota - std::min(own.quota, in_use));
    }

private:
    [[nodiscard]] tenant_usage& account(page_id page) noexcept { return accounts_[owners_[index_of(page)]]; }

    std::vector<std::uint32_t> owners_; // by page
    std::vector<tenant_usage> accounts_;
};

}} // namespace kvcache
