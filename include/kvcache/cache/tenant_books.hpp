// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// What a tenant has and may have.
struct tenant_usage {
    std::size_t pages = 0;                                       ///< Taken: held by its sequences, or idle.
    std::size_t idle = 0;                                        ///< Of them: held by nobody, kept for its next match.
    std::size_t quota = std::numeric_limits<std::size_t>::max(); ///< The most pages it may take.

    friend constexpr bool operator==(const tenant_usage&, const tenant_usage&) = default;
};

/// Which tenant has which page. Tenants are numbered from one; number zero is a cache without tenants.
class tenant_books {
public:
    tenant_books(std::size_t pages, std::size_t most) : owners_(pages, 0), accounts_(1) { accounts_.reserve(most + 1); }

    [[nodiscard]] std::size_t size() const noexcept { return accounts_.size() - 1; }
    [[nodiscard]] const tenant_usage& usage(std::uint32_t tenant) const { return accounts_[tenant]; }

    /// Returns the new tenant's number. Requires: fewer than the most.
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
    void rest(page_id page) noexcept { ++account(page).idle; }
    void wake(page_id page) noexcept { --account(page).idle; }

    /// Whether one more page is one too many.
    [[nodiscard]] bool full(std::uint32_t tenant) const noexcept {
        return accounts_[tenant].pages >= accounts_[tenant].quota;
    }
    [[nodiscard]] bool owns(std::uint32_t tenant, page_id page) const noexcept {
        return owners_[index_of(page)] == tenant;
    }

    /// Of the pages that can be had, how many the tenant may have; its own idle ones leave for it.
    [[nodiscard]] std::size_t room(std::uint32_t tenant, std::size_t available) const noexcept {
        const tenant_usage& own = accounts_[tenant];
        const std::size_t held = own.pages - own.idle;
        return std::min(available, own.quota - std::min(own.quota, held));
    }

private:
    [[nodiscard]] tenant_usage& account(page_id page) noexcept { return accounts_[owners_[index_of(page)]]; }

    std::vector<std::uint32_t> owners_; // by page
    std::vector<tenant_usage> accounts_;
};

} // namespace kvcache
