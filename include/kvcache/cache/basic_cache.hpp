// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/acquired.hpp>
#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/cache_config.hpp>
#include <kvcache/cache/cache_identity.hpp>
#include <kvcache/cache/lease.hpp>
#include <kvcache/cache/match.hpp>
#include <kvcache/cache/no_tier_client.hpp>
#include <kvcache/cache/page_manager.hpp>
#include <kvcache/cache/prompt_access.hpp>
#include <kvcache/cache/reserve_all.hpp>
#include <kvcache/cache/reserve_options.hpp>
#include <kvcache/cache/row_demand.hpp>
#include <kvcache/cache/sequence.hpp>
#include <kvcache/cache/sequence_manager.hpp>
#include <kvcache/cache/stats.hpp>
#include <kvcache/cache/tenant_access.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/tier/concept.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A paged KV cache with prefix sharing and copy-on-write; the codec decides how a page stores keys and values.
/// Requires: it outlives its sequences, matches and leases. It can be moved before it has any. One thread at a time
/// uses it with all of them; with locking::mutex any number, each object under its own rule
/// (docs/threads_and_lifetimes.md). `Policies`: a cache_policies.
template <class Policies>
class basic_cache {
    // What a policy opens with these arguments.
    template <class Policy, class... Arguments>
    using opened = decltype(std::declval<const Policy&>().open(std::declval<Arguments>()...));

    using hash_policy_type = decltype(Policies::hash);
    using recompute_type = opened<decltype(Policies::recompute), page_shape>;

public:
    using codec_type = opened<decltype(Policies::codec), page_shape>;
    using storage_type = opened<decltype(Policies::storage), std::size_t, std::size_t>;
    using sequence = basic_sequence<basic_cache>;
    using match_type = basic_match<basic_cache>;
    using lease = basic_lease<basic_cache>;
    using locking_type = typename decltype(Policies::locking)::state;
    using tier_type = opened<decltype(Policies::tier)>;

    /// Whether evicted pages can be reloaded from a tier.
    static constexpr bool has_tier = !std::same_as<tier_type, tier::none::state>;
    static_assert(
        requires { sizeof(tier_client<tier_type>); }, "a cache with a tier needs <kvcache/tier.hpp>");
    static_assert(device_codec_state<codec_type> == device_storage_state<storage_type>,
                  "pages that the host cannot read have a storage and a codec of one kind (docs/cuda.md)");
    static_assert(host_storage_state<storage_type> || !has_tier, "a tier keeps pages that the host can read");

    /// Whether the codec writes single rows, not whole pages.
    static constexpr bool writes_rows = row_writer<codec_type> || device_codec_state<codec_type>;
    /// Whether chunk_reuse works on this cache: the index finds chunks by content, and the codec writes rows.
    static constexpr bool knows_chunks =
        row_writer<codec_type> && chunk_index_state<opened<decltype(Policies::index), page_shape, std::size_t>>;

private:
    using page_manager_type = page_manager<storage_type, opened<hash_policy_type, identity>,
                                           opened<decltype(Policies::index), page_shape, std::size_t>,
                                           opened<decltype(Policies::eviction), eviction_capacity>,
                                           opened<decltype(Policies::observer)>, page_writer<codec_type>>;
    static constexpr bool is_movable =
        std::is_move_constructible_v<codec_type> && std::is_move_constructible_v<page_manager_type> &&
        std::is_move_constructible_v<recompute_type> && std::is_move_constructible_v<tier_client<tier_type>>;

public:
    /// Requires: the shape is valid, the limit is at least one page, and a cache with a tier has an identity.
    basic_cache(cache_config config, Policies policies)
        : shape_(checked(config.shape)),
          codec_(policies.codec.open(shape_)),
          identity_(detail::complete_identity(checked(std::move(config.id)), codec_, shape_)),
          pages_({shape_, pages_in(config.limit, codec_), codec_.page_bytes(), config.tenants}, identity_, policies),
          hash_(std::move(policies.hash)),
          sequences_(pages_, shape_.tokens, quantized()),
          recompute_(policies.recompute.open(shape_)),
          tier_(policies.tier.open(), identity_, detail::secret_of(hash_)) {}

    /// Requires: the other has no sequences, matches and leases.
    basic_cache(basic_cache&& other) requires is_movable : shape_(unused(other).shape_),
                                                           codec_(std::move(other.codec_)),
                                                           identity_(std::move(other.identity_)),
                                                           salts_(std::move(other.salts_)),
                                                           pages_(std::move(other.pages_)),
                                                           hash_(std::move(other.hash_)),
                                                           sequences_(pages_, shape_.tokens, quantized()),
                                                           recompute_(std::move(other.recompute_)),
                                                           tier_(std::move(other.tier_)) {}
    basic_cache& operator=(basic_cache&&) = delete;
    ~basic_cache() = default;

    /// Returns the longest cached prefix of `tokens` that can be continued, and pins its pages. A codec that quantizes
    /// whole pages matches whole pages. Full pages that only the tier has are loaded, verified and published first.
    /// Cost: O(tokens), plus the tier's reads.
    [[nodiscard]] match_type match(std::span<const token_id> tokens) { return tier_.match(*this, 0, tokens); }

    /// As match, without the tier. Cost: O(tokens).
    [[nodiscard]] match_type match_in_memory(std::span<const token_id> tokens) {
        return cache_access::match_resident(*this, 0, tokens, true, 0);
    }

    /// Whether match would look for more pages of this prompt in the tier. Cost: O(tokens).
    [[nodiscard]] bool tier_may_know(std::span<const token_id> tokens) { return tier_.may_know(*this, 0, tokens); }

    /// Loads the pages of a prompt that only the tier has, for a later match. They stay unpinned. Returns the number of
    /// tokens loaded. Cost: as match.
    std::size_t prefetch(std::span<const token_id> tokens) { return tier_.prefetch(*this, 0, tokens); }

    /// Returns the range of the matched prompt that has to be computed.
    [[nodiscard]] compute_range plan(const match_type& found) const {
        [[maybe_unused]] const sequence_state& state = found.known_.state_for(*this);
        std::size_t first = recompute_.first_computed(found.tokens(), found.of());
        if constexpr (page_writer<codec_type>) {
            const std::lock_guard guard(lock_);
            first = sequences_.residual().kept(state, first);
        }
        return {first, found.of() - first};
    }

    /// An empty sequence.
    [[nodiscard]] sequence open() { return cache_access::open(*this, 0); }

    /// Returns a sequence that shares the matched pages, up to the first token to compute.
    [[nodiscard]] sequence open(match_type found, const compute_range& plan) {
        require(plan.first <= found.known_.state_for(*this).tokens.size(), "a plan begins inside its match");
        found.known_.truncate(plan.first);
        return std::move(found.known_);
    }

    /// Joins match, plan, open and reserve for a prompt: returns a sequence that shares the cached pages, with a lease
    /// over the rows to compute. Errors: those of reserve, and pending; nothing has changed then.
    [[nodiscard]] result<acquired<basic_cache>> acquire(std::span<const token_id> tokens,
                                                        acquire_options options = {}) {
        return acquired<basic_cache>::of(*this, tokens, options);
    }

    /// Reserves `rows` rows after the tokens of a sequence, and the memory to commit them. Evicts unreferenced pages if
    /// no page is free. Errors: out_of_memory, with the pages needed and available; nothing has changed then.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, reserve_options options = {}) {
        const std::lock_guard guard(lock_);
        return cache_access::reserve(*this, to, rows, options);
    }

    /// The number of leading tokens of a prompt that will be cached, in whole pages, once the leases are committed that
    /// acquire has given out. Cost: O(sequences + such leases * tokens).
    [[nodiscard]] std::size_t pending(std::span<const token_id> tokens) const {
        return prompt_access::pending(*this, 0, tokens);
    }

    /// The pages that a reservation would take now. Cost: O(1).
    [[nodiscard]] std::size_t pages_needed(const sequence& to, std::size_t rows, reserve_options options = {}) const {
        const std::lock_guard guard(lock_);
        return sequences_.demand(to.state_for(*this), rows, options).pages;
    }

    /// Reserves rows for several sequences, for all or for none (see kvcache::reserve_all).
    [[nodiscard]] result<std::vector<lease>> reserve_all(std::span<const reservation<basic_cache>> batch) {
        return kvcache::reserve_all(*this, batch);
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }
    /// The opened recompute policy.
    [[nodiscard]] const auto& recompute() const noexcept { return recompute_; }
    [[nodiscard]] const identity& id() const noexcept { return identity_; }
    [[nodiscard]] const codec_type& codec() const noexcept { return codec_; }
    /// The opened tier policy, with its status, counters and flush.
    [[nodiscard]] tier_type& tier() noexcept { return tier_.tier(); }
    [[nodiscard]] const tier_type& tier() const noexcept { return tier_.tier(); }
    /// Counters of tier lookups, loads and writes.
    [[nodiscard]] kvcache::tier_stats tier_stats() const { return tier_.stats(); }
    [[nodiscard]] const storage_type& storage() const noexcept { return pages_.pool().storage(); }
    [[nodiscard]] const auto& observer() const noexcept { return pages_.observer(); }

    /// Calls `ask` with the observer while the cache is locked, so that no event arrives meanwhile.
    template <class Ask>
    void ask_observer(Ask&& ask) const {
        const std::lock_guard guard(lock_);
        ask(pages_.observer());
    }

    [[nodiscard]] cache_stats stats() const {
        const std::lock_guard guard(lock_);
        const auto& pool = pages_.pool();
        const std::size_t free = pool.free().size(), idle = pages_.idle();
        return {pool.pages(),
                free,
                pool.pages() - free - idle,
                idle,
                codec_.page_bytes(),
                sequences_.size(),
                pages_.residual().alive(),
                pages_.residual().bytes()};
    }

    /// One paragraph for people: shape, codec, usage, identity.
    [[nodiscard]] std::string describe() const {
        return detail::joined({"kvcache: ", describe_pages(shape_, codec_.name(), stats()), "; identity ",
                               to_string(digest_of(identity_))});
    }

    /// Checks all invariants: each page is free, referenced or evictable; reference counts match the sequences; the
    /// index and the sequences agree about tokens. Errors: malformed, with the page. Cost: O(pages + tokens). For
    /// tests.
    [[nodiscard]] result<void> check() const {
        const std::lock_guard guard(lock_);
        return sequences_.check();
    }

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const requires host_storage_state<storage_type> {
        return pages_.pool().bytes(page);
    }

    /// Full-precision rows attached to a page that a sequence references; empty if there are none.
    [[nodiscard]] std::span<const std::byte> residual_bytes(page_id page) const {
        const std::lock_guard guard(lock_);
        const codec::residual_page* rows = pages_.residual().of(page);
        return rows != nullptr ? rows->bytes() : std::span<const std::byte>();
    }

private:
    friend class cache_access;
    friend class prompt_access;
    friend class tenant_access;

    [[nodiscard]] static const page_shape& checked(const page_shape& shape) {
        require(shape.valid(), "a page shape has no extent that is zero or too large, and tokens is a multiple of 16");
        return shape;
    }

    [[nodiscard]] static identity checked(identity id) {
        require(!has_tier || id != identity{}, "a cache with a tier has an identity");
        return id;
    }

    // What stays exact, where the codec codes whole pages.
    [[nodiscard]] std::optional<residual_window> quantized() const {
        if constexpr (page_writer<codec_type>)
            return codec_.exact();
        else
            return std::nullopt;
    }

    [[nodiscard]] static std::size_t pages_in(cache_limits limit, const codec_type& codec) {
        const std::size_t pages = limit.pages_of(codec.page_bytes());
        require(pages > 0, "a cache's limit is at least one page");
        return pages;
    }

    [[nodiscard]] static basic_cache& unused(basic_cache& cache) {
        require(cache.sequences_.size() == 0, "a cache is moved before it has sequences, matches and leases");
        return cache;
    }

    page_shape shape_;
    codec_type codec_;
    identity identity_;
    std::vector<std::string> salts_; // by tenant, from 1
    page_manager_type pages_;
    hash_policy_type hash_;
    sequence_manager<page_manager_type> sequences_;
    recompute_type recompute_;
    tier_client<tier_type> tier_;
    mutable locking_type lock_;
};

}} // namespace kvcache
