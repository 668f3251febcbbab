// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/cache_core.hpp>
#include <kvcache/cache/config.hpp>
#include <kvcache/cache/handle.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/index/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A paged KV cache with prefix sharing and copy-on-write; the codec decides how a page stores keys and values.
/// Requires: it outlives its sequences and leases, which stay valid when it is moved. One thread at a time uses it with
/// all of them; with locking::mutex any number, each object under its own rule (docs/threads_and_lifetimes.md).
/// Functions on a prompt take the tenant whose prompt it is, in a cache with tenants. `Policies`: a cache_policies.
template <class Policies>
class basic_cache {
public:
    using core_type = cache_core<Policies>;
    using codec_type = typename core_type::codec_type;
    using storage_type = typename core_type::storage_type;
    using locking_type = typename core_type::locking_type;
    using tier_type = typename core_type::tier_type;
    using sequence = basic_sequence<core_type>;
    using lease = basic_lease<core_type>;
    using acquired = kvcache::acquired<core_type>;

    /// Whether evicted pages can be reloaded from a tier.
    static constexpr bool has_tier = core_type::has_tier;
    /// Whether the codec writes single rows, not whole pages.
    static constexpr bool writes_rows = core_type::writes_rows;

    /// Requires: the shape is valid, the limit is at least one page, and a cache with a tier has an identity.
    basic_cache(cache_config config, Policies policies)
        : core_(std::make_unique<core_type>(std::move(config), std::move(policies))) {}
    basic_cache(basic_cache&&) noexcept = default;
    basic_cache& operator=(basic_cache&&) noexcept = default;
    ~basic_cache() = default;

    /// Returns a sequence that shares the cached prefix of a prompt, with a lease over the rows to compute: those that
    /// are not cached, and those that the recompute policy computes again (the last one at least). Full pages that only
    /// the tier has are loaded, verified and published first. Evicts unreferenced pages if no page is free.
    /// Errors: those of reserve, and pending; nothing has changed then. Cost: O(tokens), plus the tier's reads.
    [[nodiscard]] result<acquired> acquire(std::span<const token_id> prompt, const acquire_options& options = {}) {
        return core().acquire(prompt, options);
    }

    /// An empty sequence.
    [[nodiscard]] sequence open(const tenant& of = {}) { return core().open(core().number_of(of)); }
    /// Returns a sequence that shares the cached prefix of a prompt, up to the first token to compute, as acquire does,
    /// without a lease. Cost: as acquire.
    [[nodiscard]] sequence open(std::span<const token_id> prompt, const tenant& of = {}) {
        return core().find(core().number_of(of), prompt, true).sequence;
    }

    /// Reserves `rows` rows after the tokens of a sequence, and the memory to commit them. Evicts unreferenced pages if
    /// no page is free. Errors: out_of_memory, with the pages needed and available, and the field "quota" where the
    /// tenant has as many as it may, "share" where fair tenants leave it no more, "pages" where the cache is full;
    /// nothing has changed then.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, reserve_options options = {}) {
        return core().reserve(to.state_in(core()), rows, options);
    }
    /// Reserves rows for several sequences, for all or for none. The leases are in the order of the batch. Requires:
    /// the sequences are different ones. Errors: those of reserve, with the index in the batch; no sequence has changed
    /// then, but unreferenced pages may have been evicted. Throws: bad_alloc, likewise.
    [[nodiscard]] result<std::vector<lease>> reserve(std::span<const reservation<basic_cache>> batch) {
        std::vector<lease> made;
        made.reserve(batch.size());
        for (const reservation<basic_cache>& one : batch) {
            require(one.to != nullptr, "a reservation names its sequence");
            auto rows = reserve(*one.to, one.rows, one.options);
            if (!rows) {
                error why = rows.error();
                why.message = detail::joined({"request ", std::to_string(made.size()), " of ",
                                              std::to_string(batch.size()), " of the batch: ", why.message});
                return why;
            }
            made.push_back(std::move(*rows));
        }
        return made;
    }

    /// What memory holds of a prompt, and what leases compute of it. Pins nothing, reads no tier, and is no use to the
    /// eviction policy. Cost: O(tokens + sequences).
    [[nodiscard]] lookup_result lookup(std::span<const token_id> prompt, const tenant& of = {}) const {
        return core().lookup(core().number_of(of), prompt);
    }
    /// Whether every token of a prompt is cached in memory. Cost: as lookup.
    [[nodiscard]] bool contains(std::span<const token_id> prompt, const tenant& of = {}) const {
        return lookup(prompt, of).cached_tokens == prompt.size();
    }

    /// Loads the pages of a prompt that only the tier has, for a later acquire. They stay unpinned. Returns the number
    /// of tokens loaded. Cost: as acquire.
    std::size_t prefetch(std::span<const token_id> prompt, const tenant& of = {}) {
        const std::uint32_t number = core().number_of(of);
        if constexpr (core_type::has_tier)
            return core().tier().prefetch(core(), number, prompt);
        else
            return 0;
    }

    /// Evicts the pages of a prompt from memory, last first, up to a page that a sequence uses or that a longer cached
    /// prompt continues. A tier keeps its records. Returns the number of pages. Cost: O(tokens).
    std::size_t evict(std::span<const token_id> prompt, const tenant& of = {}) {
        return core().evict(core().number_of(of), prompt);
    }
    /// Evicts these pages, last first, where no sequence uses them and no cached page continues them. Returns their
    /// number.
    std::size_t evict(std::span<const page_id> pages) { return core().evict(pages); }
    /// Evicts all pages of a tenant that no sequence uses; in a cache without tenants, all such pages. Returns whether
    /// no page is left. Cost: O(pages of the tenant * pages).
    bool clear(const tenant& of = {}) { return core().clear(core().number_of(of)); }

    /// Evicts all pages that no sequence uses, of every tenant. Pinned content stays (chunk/content_pins.hpp), and so
    /// do a tier's records. Returns whether no page is left. Cost: O(pages).
    bool clear_all() { return core().clear(0); }

    /// Opens the tenant of this salt, with a quota of `quota` pages; an existing tenant gets the new quota. If there
    /// are as many tenants as the configuration allows, it takes the place of one of which no copy is left, the one
    /// with the fewest pages, whose pages are evicted. Errors: out_of_range, if all have copies. Cost: O(tenants), and
    /// for a replaced tenant O(its pages * all pages).
    [[nodiscard]] result<tenant> open_tenant(const tenant_salt& salt, std::size_t quota) {
        return core().open_tenant(salt.bytes(), quota);
    }
    /// The tenant of what belongs to no other: all who use it share what is stored.
    [[nodiscard]] tenant open_tenant() { return *core().open_tenant({}, 0); }

    [[nodiscard]] const page_shape& shape() const { return core().shape(); }
    /// The identity of the cache; of what a tenant stores, for a tenant.
    [[nodiscard]] const identity& id() const { return core().id(); }
    [[nodiscard]] identity id(const tenant& of) const { return core().id(core().number_of(of)); }
    [[nodiscard]] const codec_type& codec() const { return core().codec(); }
    [[nodiscard]] const storage_type& storage() const { return core().storage(); }
    /// The opened tier policy, with its status, counters and flush.
    [[nodiscard]] tier_type& tier() { return core().tier().tier(); }
    [[nodiscard]] const tier_type& tier() const { return core().tier().tier(); }

    /// The occupancy of the cache. In a cache with tenants it is for the operator only: it reveals the activity of all.
    [[nodiscard]] cache_stats stats() const { return core().stats(); }
    /// The occupancy of each layer group, in the layout's order: a vector of layer_group_stats.
    [[nodiscard]] auto group_stats() const requires core_type::grouped {
        const std::lock_guard guard(core().lock());
        return core().sequences().groups().stats();
    }
    /// The pages of a tenant.
    [[nodiscard]] tenant_usage stats(const tenant& of) const { return core().usage(core().number_of(of)); }

    /// Calls `f` with the observer while the cache is locked, so that no event arrives meanwhile. Returns its result.
    template <class F>
    auto with_observer(F&& f) const {
        const std::lock_guard guard(core().lock());
        return f(std::as_const(core().pages()).observer());
    }

    /// Sets the counters of the observer and of the use of the tier to zero; those of the tier itself run on.
    void reset_statistics() {
        if constexpr (has_tier)
            core().tier().reset_stats();
        const std::lock_guard guard(core().lock());
        core().pages().reset_observer();
    }

    /// Checks all invariants: each page is free, referenced or evictable; reference counts match the sequences; the
    /// index and the sequences agree about tokens. Errors: malformed, with the page. Cost: O(pages + tokens). For
    /// tests.
    [[nodiscard]] result<void> check() const { return core().check(); }

    /// The shared state, which sequences and leases point to. For the library's own code.
    [[nodiscard]] core_type& core() const {
        require(core_ != nullptr, "a cache that was moved from is only destroyed");
        return *core_;
    }

private:
    std::unique_ptr<core_type> core_;
};

/// Counters of a cache's use of its tier.
template <class Cache>
[[nodiscard]] tier_stats tier_stats_of(const Cache& cache) {
    return cache.core().tier().stats();
}

/// One paragraph for people: shape, codec, usage, identity.
template <class Cache>
[[nodiscard]] std::string describe(const Cache& cache) {
    const page_shape& shape = cache.shape();
    const cache_stats now = cache.stats();
    const auto count = [](std::size_t n, const char* of) { return std::to_string(n) + of; };
    std::string groups;
    if constexpr (requires { cache.group_stats(); })
        for (const auto& of : cache.group_stats())
            groups += "; " + describe(of);
    return detail::joined({"kvcache: ", count(shape.layers, " layers, "), count(shape.kv_heads, " KV heads of "),
                           count(shape.head_dim, ", pages of "), count(shape.tokens, " tokens and "),
                           count(now.page_bytes, " bytes ("), cache.codec().name(), "); ", count(now.pages, " pages: "),
                           count(now.in_use, " in use by "), count(now.sequences, " sequences, "),
                           count(now.evictable, " evictable, "), count(now.free, " free; identity "),
                           to_string(digest_of(cache.id())), groups});
}

}} // namespace kvcache
