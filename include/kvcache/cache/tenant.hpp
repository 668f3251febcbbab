// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/tenant_books.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/recompute/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

/// What tells a tenant's prompts from those of all others, in the index and in every name: some bytes, never none. It
/// need not be secret for tenants to be apart in one process; names that leave the process are as secret as it is.
class tenant_salt {
public:
    /// Requires: there are bytes.
    explicit tenant_salt(std::string bytes) : bytes_(std::move(bytes)) {
        expects(!bytes_.empty(), "a tenant's salt is not empty");
    }
    [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

private:
    std::string bytes_;
};

/// One tenant's view of a shared cache: a cache by itself, as pipelines use it, that finds what this tenant has stored
/// and nothing else. Requires: the cache outlives it.
template <class Cache>
class basic_tenant {
public:
    using codec_type = typename Cache::codec_type;
    using storage_type = typename Cache::storage_type;
    using sequence = typename Cache::sequence;
    using match_type = typename Cache::match_type;
    using lease = typename Cache::lease;
    using reuse_type = typename Cache::reuse_type;
    static constexpr bool knows_chunks = Cache::knows_chunks;

    /// The longest run of `tokens` that this tenant has stored, pinned.
    [[nodiscard]] match_type match(std::span<const token_id> tokens) const { return cache_->match_as(number_, tokens); }
    [[nodiscard]] rerun plan(const match_type& found) const { return cache_->plan(found); }
    [[nodiscard]] sequence open() const { return cache_->open_as(number_); }
    [[nodiscard]] sequence open(match_type found, const rerun& plan) const {
        return cache_->open(std::move(found), plan);
    }
    /// Errors: out_of_memory: field "quota" where the tenant has its share, "pages" where the cache is full.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows) const { return cache_->reserve(to, rows); }
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, std::size_t at_once) const {
        return cache_->reserve(to, rows, at_once);
    }

    /// As the cache's, within what this tenant has stored.
    [[nodiscard]] reuse_type find(const sequence& behind,
                                  std::span<const token_id> tokens) const requires Cache::knows_chunks {
        return cache_->find(behind, tokens);
    }
    bool note(const sequence& of, std::size_t first, std::size_t count) const requires Cache::knows_chunks {
        return cache_->note(of, first, count);
    }
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, const reuse_type& found,
                                        std::span<const std::size_t> rerun) const {
        return cache_->reserve(to, rows, found, rerun);
    }
    [[nodiscard]] const auto& recompute() const noexcept { return cache_->recompute(); }

    /// The identity of what this tenant stores.
    [[nodiscard]] identity id() const { return cache_->id_as(number_); }
    [[nodiscard]] std::span<const std::byte> bytes(page_id page) const { return cache_->bytes(page); }
    [[nodiscard]] std::span<const std::byte> exact_bytes(page_id page) const { return cache_->exact_bytes(page); }

    [[nodiscard]] const page_shape& shape() const noexcept { return cache_->shape(); }
    [[nodiscard]] const codec_type& codec() const noexcept { return cache_->codec(); }
    [[nodiscard]] const storage_type& storage() const noexcept { return cache_->storage(); }

    /// What this tenant has and may have.
    [[nodiscard]] tenant_usage usage() const { return cache_->usage(number_); }

private:
    template <class>
    friend class basic_tenant_cache;
    basic_tenant(Cache& cache, std::uint32_t number) : cache_(&cache), number_(number) {}

    Cache* cache_;
    std::uint32_t number_;
};

} // namespace kvcache
