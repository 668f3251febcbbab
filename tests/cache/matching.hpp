// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/basic_cache.hpp>
#include <kvcache/recompute/concept.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace kvcache_test {

/// The steps of acquire one by one: the pinned prefix of a prompt, the rows to compute, and a sequence.
template <class Cache>
struct pinned_match : Cache::core_type::match {
    [[nodiscard]] std::size_t tokens() const { return this->sequence.size(); }
};

template <class Policies>
[[nodiscard]] pinned_match<kvcache::basic_cache<Policies>> match_in(kvcache::basic_cache<Policies>& cache,
                                                                    std::span<const kvcache::token_id> tokens,
                                                                    const kvcache::tenant& of = {}) {
    return {cache.core().find(cache.core().number_of(of), tokens, false)};
}

template <class Policies>
[[nodiscard]] kvcache::compute_range plan_of(const kvcache::basic_cache<Policies>& cache,
                                             const pinned_match<kvcache::basic_cache<Policies>>& found) {
    const auto& core = cache.core();
    const auto& state = found.sequence.state_in(core);
    const std::size_t all = found.found.prompt_tokens,
                      first = core.recompute().first_computed(state.tokens.size(), all),
                      kept = core.sequences().residual().kept(state.table, first);
    return {kept, all - kept};
}

/// The first tokens of a match, up to the first one to compute.
template <class Policies>
[[nodiscard]] auto open_at(const kvcache::basic_cache<Policies>& cache,
                           pinned_match<kvcache::basic_cache<Policies>> found, const kvcache::compute_range& plan) {
    kvcache::require(plan.first <= found.sequence.state_in(cache.core()).tokens.size(),
                     "a plan begins inside its match");
    found.sequence.truncate(plan.first);
    return std::move(found.sequence);
}

/// A cache as one of its tenants uses it.
template <class Cache>
struct tenant_view {
    using sequence = typename Cache::sequence;
    using codec_type = typename Cache::codec_type;
    using core_type = typename Cache::core_type;

    Cache* cache;
    kvcache::tenant of;

    [[nodiscard]] kvcache::lookup_result lookup(std::span<const kvcache::token_id> prompt) const {
        return cache->lookup(prompt, of);
    }
    [[nodiscard]] auto acquire(std::span<const kvcache::token_id> prompt, kvcache::acquire_options options = {}) const {
        options.tenant = of;
        return cache->acquire(prompt, options);
    }
    [[nodiscard]] sequence open() const { return cache->open(of); }
    [[nodiscard]] auto reserve(sequence& to, std::size_t rows, kvcache::reserve_options options = {}) const {
        return cache->reserve(to, rows, options);
    }
    [[nodiscard]] kvcache::tenant_usage usage() const { return cache->stats(of); }
    [[nodiscard]] kvcache::identity id() const { return cache->id(of); }
    [[nodiscard]] const auto& shape() const { return cache->shape(); }
    [[nodiscard]] const auto& codec() const { return cache->codec(); }
    [[nodiscard]] const auto& storage() const { return cache->storage(); }
    [[nodiscard]] auto& core() const { return cache->core(); }

    friend bool operator==(const tenant_view& a, const tenant_view& b) { return a.of == b.of; }
};

/// The tenant of a salt. Errors: those of open_tenant.
template <class Cache>
[[nodiscard]] kvcache::result<tenant_view<Cache>> view_of(Cache& cache, const std::string& salt, std::size_t quota) {
    auto opened = cache.open_tenant(kvcache::tenant_salt(salt), quota);
    if (!opened)
        return opened.error();
    return tenant_view<Cache>{&cache, *opened};
}
template <class Cache>
[[nodiscard]] tenant_view<Cache> shared_view_of(Cache& cache) {
    return {&cache, cache.open_tenant()};
}

template <class Cache>
[[nodiscard]] pinned_match<Cache> match_in(const tenant_view<Cache>& view, std::span<const kvcache::token_id> tokens) {
    return match_in(*view.cache, tokens, view.of);
}
template <class Cache>
[[nodiscard]] kvcache::compute_range plan_of(const tenant_view<Cache>& view, const pinned_match<Cache>& found) {
    return plan_of(*view.cache, found);
}
template <class Cache>
[[nodiscard]] typename Cache::sequence open_at(const tenant_view<Cache>& view, pinned_match<Cache> found,
                                               const kvcache::compute_range& plan) {
    return open_at(*view.cache, std::move(found), plan);
}

} // namespace kvcache_test
