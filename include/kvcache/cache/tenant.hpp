// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/acquired.hpp>
#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/prompt_access.hpp>
#include <kvcache/cache/reserve_options.hpp>
#include <kvcache/cache/tenant_access.hpp>
#include <kvcache/cache/tenant_quotas.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/recompute/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A salt that separates a tenant's prompts from all others, in the index and in every name: a nonempty byte string. It
/// need not be secret to separate tenants within one process; names that leave the process are only as secret as the
/// salt.
class tenant_salt {
public:
    /// Requires: `bytes` is not empty.
    explicit tenant_salt(std::string bytes) : bytes_(std::move(bytes)) {
        expects(!bytes_.empty(), "a tenant's salt is not empty");
    }
    [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

private:
    std::string bytes_;
};

/// One tenant's view of a shared cache. It has a cache's interface, as pipelines use it, and finds only what this
/// tenant has stored. Copies are views of the same tenant. Threads use it as they use the cache: with locking::mutex
/// any number at once. Requires: the cache outlives it; a view of the tenant outlives its sequences, matches and
/// leases.
template <class Cache>
class basic_tenant {
public:
    using codec_type = typename Cache::codec_type;
    using storage_type = typename Cache::storage_type;
    using sequence = typename Cache::sequence;
    using match_type = typename Cache::match_type;
    using lease = typename Cache::lease;
    using locking_type = typename Cache::locking_type;
    static constexpr bool knows_chunks = Cache::knows_chunks;
    static constexpr bool writes_rows = Cache::writes_rows;
    static constexpr bool has_tier = Cache::has_tier;

    /// The longest run of `tokens` that this tenant has stored, pinned.
    [[nodiscard]] match_type match(std::span<const token_id> tokens) const {
        return cache_access::match(*cache_, number_, tokens);
    }
    /// As match, without the tier.
    [[nodiscard]] match_type match_in_memory(std::span<const token_id> tokens) const {
        return cache_access::match_resident(*cache_, number_, tokens, true, 0);
    }
    /// Whether match would look for more pages of this prompt in the tier.
    [[nodiscard]] bool tier_may_know(std::span<const token_id> tokens) const {
        return cache_access::tier_may_know(*cache_, number_, tokens);
    }
    /// Loads the pages of a prompt that only the tier has. Returns the number of tokens loaded.
    std::size_t prefetch(std::span<const token_id> tokens) const {
        return cache_access::prefetch(*cache_, number_, tokens);
    }
    [[nodiscard]] compute_range plan(const match_type& found) const { return cache_->plan(found); }
    [[nodiscard]] sequence open() const { return cache_access::open(*cache_, number_); }
    [[nodiscard]] sequence open(match_type found, const compute_range& plan) const {
        return cache_->open(std::move(found), plan);
    }
    /// Errors: out_of_memory: field "quota" where the tenant has its share, "pages" where the cache is full.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, reserve_options options = {}) const {
        return cache_->reserve(to, rows, options);
    }

    /// The pages that a reservation would take now.
    [[nodiscard]] std::size_t pages_needed(const sequence& to, std::size_t rows, reserve_options options = {}) const {
        return cache_->pages_needed(to, rows, options);
    }
    /// The number of leading tokens of a prompt that will be cached once leases are committed, as the cache's own.
    [[nodiscard]] std::size_t pending(std::span<const token_id> tokens) const {
        return prompt_access::pending(*cache_, number_, tokens);
    }
    /// Joins match, plan, open and reserve for a prompt, as the cache's own acquire.
    [[nodiscard]] result<acquired<basic_tenant>> acquire(std::span<const token_id> tokens,
                                                         acquire_options options = {}) const {
        return acquired<basic_tenant>::of(*this, tokens, options);
    }

    [[nodiscard]] const auto& recompute() const noexcept { return cache_->recompute(); }

    /// The identity of what this tenant stores.
    [[nodiscard]] identity id() const { return tenant_access::id(*cache_, number_); }
    [[nodiscard]] std::span<const std::byte> bytes(page_id page) const { return cache_->bytes(page); }
    [[nodiscard]] std::span<const std::byte> residual_bytes(page_id page) const { return cache_->residual_bytes(page); }

    [[nodiscard]] const page_shape& shape() const noexcept { return cache_->shape(); }
    [[nodiscard]] const codec_type& codec() const noexcept { return cache_->codec(); }
    [[nodiscard]] const storage_type& storage() const noexcept { return cache_->storage(); }

    /// What this tenant has and may have.
    [[nodiscard]] tenant_usage usage() const { return tenant_access::usage(*cache_, number_); }

    /// Whether two views are of the same tenant.
    friend bool operator==(const basic_tenant& a, const basic_tenant& b) noexcept {
        return a.cache_ == b.cache_ && a.number_ == b.number_;
    }

private:
    friend class cache_access;
    template <class>
    friend class basic_tenant_cache;
    basic_tenant(Cache& cache, std::uint32_t number, std::shared_ptr<const void> views)
        : cache_(&cache), number_(number), views_(std::move(views)) {}

    Cache* cache_;
    std::uint32_t number_;
    std::shared_ptr<const void> views_; // counts the views of a tenant
};

namespace detail {

template <class Cache>
struct tenant_view {
    using type = basic_tenant<Cache>;
};
template <class Cache>
struct tenant_view<basic_tenant<Cache>> {
    using type = basic_tenant<Cache>;
};

} // namespace detail

/// The view of a tenant of a cache, which may be such a view itself.
template <class Cache>
using tenant_of = typename detail::tenant_view<Cache>::type;

}} // namespace kvcache
