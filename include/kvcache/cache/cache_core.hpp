// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/cache/guards.hpp>
#include <kvcache/cache/handle.hpp>
#include <kvcache/cache/lookup_result.hpp>
#include <kvcache/cache/page_budget.hpp>
#include <kvcache/cache/page_manager.hpp>
#include <kvcache/cache/sequence_manager.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/layers/concept.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/locking/none.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/tier/concept.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The shared state of a cache, under one lock: pages, sequences, tenants and the link to the tier. Its sequences and
/// leases point to it. Each function takes the lock, except the accessors, which say what they require. Not for hosts:
/// basic_cache is. `Policies`: a cache_policies.
template <class Policies>
class cache_core {
    // What a policy opens with these arguments.
    template <class Policy, class... Arguments>
    using opened = decltype(std::declval<const Policy&>().open(std::declval<Arguments>()...));

public:
    using index_type = opened<decltype(Policies::index), page_shape, std::size_t>;
    using codec_type = opened<decltype(Policies::codec), page_shape>;
    using storage_type = opened<decltype(Policies::storage), std::size_t, std::size_t>;
    using recompute_type = opened<decltype(Policies::recompute), page_shape>;
    using tier_type = opened<decltype(Policies::tier)>;
    using locking_type = typename decltype(Policies::locking)::state;
    using layers_type = decltype(detail::open_layers(std::declval<const Policies&>(), layers_capacity{}));
    using page_manager_type = page_manager<storage_type, opened<decltype(Policies::hash), identity>, index_type,
                                           opened<decltype(Policies::eviction), eviction_capacity>,
                                           opened<decltype(Policies::observer)>, content_of<codec_type>, layers_type>;
    using sequence = basic_sequence<cache_core>;
    using lease = basic_lease<cache_core>;

    static constexpr bool has_tier = !std::same_as<tier_type, tier::none::state>;
    static constexpr bool writes_rows = row_writer<codec_type> || device_codec_state<codec_type>;
    static constexpr bool grouped = layers_type::several;
    static constexpr bool owns_blocks = grouped && host_storage_state<storage_type>;
    static_assert(
        requires { sizeof(tier_client<tier_type>); }, "a cache with a tier needs <kvcache/tier.hpp>");
    static_assert(device_codec_state<codec_type> == device_storage_state<storage_type>,
                  "pages that the host cannot read have a storage and a codec of one kind (docs/cuda.md)");
    static_assert(host_storage_state<storage_type> || !has_tier, "a tier keeps pages that the host can read");
    static_assert(
        !grouped || host_storage_state<storage_type> || requires(const storage_type memory) { memory.follows_moves(); },
        "layer groups are in memory that the host can read, or in storage::external");
    static_assert(
        detail::writes_blocks_by_row<layers_type>,
        "the blocks of layer groups have a codec that writes row by row: f32 or row_major, or codec::by_group "
        "with one of them for blocks");
    static_assert(
        !grouped || requires { sizeof(group_leases<page_manager_type>); },
        "layer groups need <kvcache/layer_groups.hpp>");

    /// It does not move. Requires: the shape is valid, the limit is at least one page, and a cache with a tier has an
    /// identity.
    cache_core(cache_config config, Policies policies)
        : shape_(checked(detail::shape_of(config.shape, policies.layers))),
          codec_(policies.codec.open(shape_)),
          identity_(detail::complete_identity(checked(std::move(config.id)), codec_, shape_, policies)),
          pages_(detail::open_pages<page_manager_type>(config, policies, codec_, shape_, identity_)),
          hash_(std::move(policies.hash)),
          sequences_(pages_, shape_.tokens, residual_window_of(codec_)),
          recompute_(policies.recompute.open(shape_)),
          tier_(policies.tier.open(), identity_, detail::secret_of(hash_)),
          tenants_(config.tenants) {
        if (config.tenants > 0)
            add_tenant({}, std::numeric_limits<std::size_t>::max());
    }

    // What never changes.

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }
    [[nodiscard]] const codec_type& codec() const noexcept { return codec_; }
    [[nodiscard]] const storage_type& storage() const noexcept { return pages_.pool().storage(); }
    [[nodiscard]] const recompute_type& recompute() const noexcept { return recompute_; }
    [[nodiscard]] tier_client<tier_type>& tier() noexcept { return tier_; }
    [[nodiscard]] const tier_client<tier_type>& tier() const noexcept { return tier_; }

    // What the lock guards. Requires: the lock is held.

    [[nodiscard]] locking_type& lock() const noexcept { return lock_; }
    [[nodiscard]] page_manager_type& pages() noexcept { return pages_; }
    [[nodiscard]] const page_manager_type& pages() const noexcept { return pages_; }
    [[nodiscard]] sequence_manager<page_manager_type>& sequences() noexcept { return sequences_; }
    [[nodiscard]] const sequence_manager<page_manager_type>& sequences() const noexcept { return sequences_; }

    // Prompts. `tenant` is a tenant's number, from `number_of`.

    /// How a prompt is matched.
    struct match_options {
        bool plans = false;     ///< Leaves out the tokens that the recompute policy computes again.
        bool emits = true;      ///< Sends the observer the event of the match.
        bool touches = true;    ///< Calls `touch` of the eviction policy.
        std::size_t loaded = 0; ///< Tokens that came from the tier just now.
    };
    /// A sequence that shares the cached prefix of a prompt.
    struct match {
        basic_sequence<cache_core> sequence;
        lookup_result found;
    };

    /// The number of a tenant. Requires: a cache with tenants is used with one of them, and a cache without is not.
    [[nodiscard]] std::uint32_t number_of(const kvcache::tenant& of) const {
        require((of.number() == 0) == (tenants_.most() == 0), "a cache with tenants is used with one of them");
        require(of.number() == 0 || of.belongs_to(tenants_), "a tenant is used with its own cache");
        return of.number();
    }

    /// What is cached of a prompt, and what is being computed. Pins and changes nothing.
    [[nodiscard]] lookup_result lookup(std::uint32_t tenant, std::span<const token_id> tokens) {
        const lock_guard guard(lock_);
        const index_match& found = pages_.find(tenant, tokens);
        lookup_result made = described(found, tokens.size());
        made.cached_tokens = sequences_.residual().kept(found.pages, found.tokens);
        if constexpr (grouped)
            made.limit(sequences_.groups().limit(found.pages, made.cached_tokens));
        made.pending_tokens = sequences_.pending(tenant, tokens);
        return made;
    }

    /// A sequence that shares the longest prefix of a prompt that is in memory.
    [[nodiscard]] match match_in_memory(std::uint32_t tenant, std::span<const token_id> tokens,
                                        const match_options& options) {
        const lock_guard guard(lock_);
        auto known = sequences_.fresh();
        const index_match& found = pages_.find(tenant, tokens);
        lookup_result made = described(found, tokens.size());
        known->tenant = tenant;
        known->prompt = tokens.size();
        known->tokens.assign(tokens.first(found.tokens));
        known->add_pages(found.pages, found.tokens, shape_.tokens);
        std::size_t kept = sequences_.residual().kept(known->table, found.tokens);
        if constexpr (grouped) {
            sequences_.groups().note(found, options.touches);
            if (options.plans)
                kept = sequences_.residual().kept(known->table, first_computed(kept, tokens.size()));
            kept = made.limit(sequences_.groups().limit(found.pages, kept));
        }
        known->tokens.truncate(kept);
        known->drop_entries(known->cut(kept));
        made.cached_tokens = kept;
        made.loaded_tokens = std::min(options.loaded, kept);
        if (options.emits) {
            const auto pages = std::span(found.pages).first(known->table.size());
            pages_.emit({event_kind::matched, kept, tokens.size(), pages.size(), pages});
        }
        const std::size_t first = options.plans ? first_computed(kept, tokens.size()) : kept;
        sequences_.add(*known, options.touches); // after what may throw
        if (options.plans)
            truncate_to(*known, first);
        return {{*this, std::move(known)}, made};
    }

    /// The same, after the pages that only the tier has are loaded, unless `load` is false.
    [[nodiscard]] match find(std::uint32_t tenant, std::span<const token_id> tokens, bool plans, bool load = true) {
        if constexpr (has_tier)
            if (load && !is_null(tier_.tier()))
                return tier_.find(*this, tenant, tokens, plans);
        return match_in_memory(tenant, tokens, {.plans = plans});
    }

    /// Ends a match that was made without an event and a plan.
    void complete(match& found, bool plans) {
        std::vector<page_id> pages;
        for (const page_entry& entry : found.sequence.table())
            pages.push_back(entry.page);
        const lock_guard guard(lock_);
        pages_.emit({event_kind::matched, found.found.cached_tokens, found.found.prompt_tokens, pages.size(), pages});
        sequence_state& state = found.sequence.state_in(*this);
        if (plans)
            truncate_to(state, first_computed(state.tokens.size(), found.found.prompt_tokens));
    }

    /// See basic_cache.
    [[nodiscard]] result<acquired<cache_core>> acquire(std::span<const token_id> tokens,
                                                       const acquire_options& options) {
        const std::uint32_t tenant = number_of(options.tenant);
        while (true) {
            const std::uint64_t ended = options.pending == pending_prefix::compute ? 0 : prompts_ended();
            match known = find(tenant, tokens, true, options.load);
            if (auto rows = reserve_prompt(known.sequence, tokens, options, ended)) {
                if (!*rows)
                    return rows->error();
                return acquired<cache_core>(std::move(known.sequence), std::move(**rows), known.found);
            }
        }
    }

    /// An empty sequence.
    [[nodiscard]] sequence open(std::uint32_t tenant) {
        const lock_guard guard(lock_);
        auto state = sequences_.fresh();
        state->tenant = tenant;
        sequences_.add(*state);
        return {*this, std::move(state)};
    }

    /// See basic_cache.
    std::size_t evict(std::uint32_t tenant, std::span<const token_id> tokens) {
        const lock_guard guard(lock_);
        return pages_.evict(pages_.find(tenant, tokens).pages);
    }
    std::size_t evict(std::span<const page_id> pages) {
        const lock_guard guard(lock_);
        for (const page_id page : pages)
            require(index_of(page) < pages_.pool().pages(), "an evicted page is one of the cache's");
        return pages_.evict(pages);
    }
    [[nodiscard]] bool clear(std::uint32_t tenant) {
        const lock_guard guard(lock_);
        return pages_.clear(tenant);
    }

    /// Expected seconds to compute `rows` rows from position `first` on, from the leases committed so far.
    [[nodiscard]] double prefill_seconds(std::size_t first, std::size_t rows) const {
        const lock_guard guard(lock_);
        return pages_.seconds(first, rows);
    }

    // Tenants.

    /// See basic_cache.
    [[nodiscard]] result<kvcache::tenant> open_tenant(const std::string& salt, std::size_t quota) {
        const lock_guard guard(lock_);
        require(tenants_.most() > 0, "a cache with tenants is opened for a number of them");
        if (salt.empty())
            return tenants_.use(1);
        if (const auto known = tenants_.find(salt)) {
            pages_.set_quota(known->number(), quota);
            return *known;
        }
        if (!tenants_.full())
            return tenants_.use(add_tenant(salt, quota));
        const std::uint32_t number =
            tenants_.replaceable([&](std::uint32_t each) { return pages_.tenants().usage(each).pages; });
        if (number == 0 || !pages_.clear(number))
            return tenants_.refuse();
        const identity own = tenant_identity(salt);
        const digest root = hash_.open(own).root();
        std::string kept = salt;
        if constexpr (has_tier)
            tier_.set(number, own);
        pages_.replace_tenant(number, root, quota);
        tenants_.replace(number, std::move(kept));
        return tenants_.use(number);
    }
    [[nodiscard]] tenant_usage usage(std::uint32_t tenant) const {
        const lock_guard guard(lock_);
        return pages_.tenants().usage(tenant);
    }
    /// The identity of what a tenant stores.
    [[nodiscard]] identity id(std::uint32_t tenant) const {
        const lock_guard guard(lock_);
        return tenant == 0 ? identity_ : tenant_identity(tenants_.salt(tenant));
    }
    [[nodiscard]] const identity& id() const noexcept { return identity_; }

    // Sequences and leases.

    void release(std::unique_ptr<sequence_state> state) noexcept {
        const ending guard(lock_, sequences_);
        sequences_.remove(std::move(state));
    }

    [[nodiscard]] sequence fork(const sequence_state& from, std::size_t tokens) {
        const lock_guard guard(lock_);
        require(tokens <= from.tokens.size() && !from.lease.open, "a fork lies inside a sequence without a lease");
        auto made = sequences_.fresh();
        made->share(from, sequences_.groups().kept(from, sequences_.residual().kept(from, tokens)), shape_.tokens);
        sequences_.add(*made);
        return {*this, std::move(made)};
    }

    void set_cacheable_limit(sequence_state& state, std::size_t tokens) {
        const lock_guard guard(lock_);
        state.cacheable = tokens;
    }

    void truncate(sequence_state& state, std::size_t tokens) {
        const lock_guard guard(lock_);
        require(tokens <= state.tokens.size() && !state.lease.open,
                "a truncation lies inside a sequence without a lease");
        truncate_to(state, tokens);
    }

    [[nodiscard]] result<sequence> erase_range(const sequence_state& from, std::size_t first, std::size_t count) {
        const lock_guard guard(lock_);
        require(first <= from.tokens.size() && count <= from.tokens.size() - first && !from.lease.open,
                "an erased range lies inside a sequence without a lease");
        if constexpr (grouped)
            return error{error_code::unsupported, "groups", "tokens are erased where all layers keep the same"};
        auto kept = sequences_.fresh();
        kept->share(from, first, shape_.tokens);
        const auto after = kept->leave_out(from, first, count);
        sequences_.add(*kept);
        const bool fits = after.size() <= pages_.available(from.tenant);
        if (!fits || !sequences_.copy_rows(*kept, codec_, after)) {
            sequences_.remove(std::move(kept));
            const std::size_t rows = from.tokens.size() - first - count, bytes = codec_.page_bytes();
            return fits ? sequences_.refuse_storage(from, rows, after.size(), bytes)
                        : sequences_.refuse(from, rows, after.size(), bytes);
        }
        return sequence(*this, std::move(kept));
    }

    /// Reserves rows. Errors, exceptions: those of the cache's reserve.
    [[nodiscard]] result<lease> reserve(sequence_state& state, std::size_t rows, reserve_options options) {
        const lock_guard guard(lock_);
        if (auto reserved = sequences_.reserve(state, codec_, rows, options); !reserved)
            return reserved.error();
        return lease(*this, state);
    }

    void commit(sequence_state& state, std::span<const token_id> tokens) {
        {
            const ending guard(lock_, sequences_);
            sequences_.commit(state, tokens);
            pages_.emit({event_kind::stored, tokens.size(), 0, 0});
        }
        if constexpr (has_tier)
            tier_.store(*this, state);
    }
    /// The same for rows that were not computed here; the tier gets none of them.
    void commit_in_place(sequence_state& state, std::span<const token_id> tokens) {
        const ending guard(lock_, sequences_);
        sequences_.commit_unmeasured(state, tokens);
        pages_.emit({event_kind::stored, tokens.size(), 0, 0});
    }
    void rollback(sequence_state& state) noexcept {
        const ending guard(lock_, sequences_);
        sequences_.undo(state);
    }

    // Layer groups.

    /// Calls `f` with the blocks that sequences use.
    template <class F>
    auto groups(F&& f) requires grouped {
        const lock_guard guard(lock_);
        return f(sequences_.groups());
    }

    // The whole cache.

    [[nodiscard]] cache_stats stats() const {
        const lock_guard guard(lock_);
        const auto& pool = pages_.pool();
        const std::size_t free = pool.free().size(), evictable = pages_.evictable();
        return {pool.pages(),
                free,
                pool.pages() - free - evictable,
                evictable,
                codec_.page_bytes(),
                sequences_.size(),
                pages_.residual().alive(),
                pages_.residual().bytes()};
    }
    [[nodiscard]] result<void> check() const {
        const lock_guard guard(lock_);
        return sequences_.check();
    }
    /// Full-precision rows attached to a page that a sequence references; empty if there are none.
    [[nodiscard]] std::span<const std::byte> residual_bytes(page_id page) const {
        const lock_guard guard(lock_);
        const codec::residual_page* rows = pages_.residual().of(page);
        return rows != nullptr ? rows->bytes() : std::span<const std::byte>();
    }

private:
    using lock_guard = detail::guard_of<locking_type>;
    using ending = detail::ending<locking_type, sequence_manager<page_manager_type>>;

    [[nodiscard]] static const page_shape& checked(const page_shape& shape) {
        require(has_pages_of<codec_type>(shape), detail::shape_rule<codec_type>);
        return shape;
    }
    [[nodiscard]] static identity checked(identity id) {
        require(!has_tier || id != identity{}, "a cache with a tier has an identity");
        return id;
    }
    // The rows that stay in full precision, where the codec encodes whole pages.
    [[nodiscard]] static residual_window residual_window_of([[maybe_unused]] const codec_type& codec) {
        if constexpr (page_writer<codec_type>)
            return codec.window();
        else
            return {};
    }

    [[nodiscard]] static lookup_result described(const index_match& found, std::size_t prompt) {
        return {.prompt_tokens = prompt,
                .cached_tokens = found.tokens,
                .common_prefix = found.tokens,
                .end = found.end,
                .differing_token = found.stored};
    }

    // The first token of a prompt that is computed, where `known` tokens are cached.
    [[nodiscard]] std::size_t first_computed(std::size_t known, std::size_t prompt) const {
        const std::size_t first = recompute_.first_computed(known, prompt);
        require(first <= known, "a plan begins inside its match");
        return first;
    }
    // Keeps the first `tokens` tokens, or fewer: those that can be continued.
    void truncate_to(sequence_state& state, std::size_t tokens) noexcept {
        sequences_.truncate(state, sequences_.groups().kept(state, sequences_.residual().kept(state, tokens)));
    }

    [[nodiscard]] std::uint64_t prompts_ended() const {
        const lock_guard guard(lock_);
        return sequences_.prompts_ended();
    }

    // Reserves the rows of a prompt after those that a sequence has, and notes what they are. Returns nullopt if the
    // prompt has to be matched again, because a lease of a prompt has ended since there were `ended`, or this has
    // waited for one. Errors: as reserve; pending.
    [[nodiscard]] std::optional<result<lease>> reserve_prompt(sequence& to, std::span<const token_id> tokens,
                                                              const acquire_options& options, std::uint64_t ended) {
        const lock_guard guard(lock_);
        sequence_state& state = to.state_in(*this);
        const std::size_t known = state.tokens.size();
        if (options.pending != pending_prefix::compute) {
            if (sequences_.prompts_ended() != ended)
                return std::nullopt;
            // The last token is computed in any case.
            const auto shared = tokens.first(tokens.empty() ? 0 : tokens.size() - 1);
            if (const std::size_t soon = sequences_.pending(state.tenant, shared); soon > known) {
                if constexpr (waiting_state<locking_type>)
                    if (options.pending == pending_prefix::wait) {
                        lock_.wait();
                        return std::nullopt;
                    }
                return error{
                    error_code::pending, "tokens",
                    detail::joined({std::to_string(soon), " of ", std::to_string(tokens.size()),
                                    " tokens are being computed, and ", std::to_string(known), " are cached"})};
            }
        }
        const auto rest = tokens.subspan(known, std::min(tokens.size() - known, options.rows));
        state.lease.prompt.reserve(rest.size());
        if (auto reserved = sequences_.reserve(state, codec_, rest.size(), {options.max_batch_tokens}); !reserved)
            return reserved.error();
        state.lease.prompt.assign(rest.begin(), rest.end());
        return lease(*this, state);
    }

    [[nodiscard]] identity tenant_identity(const std::string& salt) const {
        identity own = identity_;
        own.tenant = salt;
        return own;
    }
    // Adds a tenant and returns its number. Requires: there are fewer than the maximum. Throws: bad_alloc; the tenant
    // is then not added.
    std::uint32_t add_tenant(const std::string& salt, std::size_t quota) {
        const identity own = tenant_identity(salt);
        tenant_registry::account account{.salt = salt};
        tenants_.reserve();
        if constexpr (has_tier)
            tier_.set(tenants_.size() + 1, own);
        pages_.add_tenant(hash_.open(own).root(), quota);
        return tenants_.add(std::move(account));
    }

    page_shape shape_;
    codec_type codec_;
    identity identity_;
    page_manager_type pages_;
    decltype(Policies::hash) hash_;
    sequence_manager<page_manager_type> sequences_;
    recompute_type recompute_;
    tier_client<tier_type> tier_;
    tenant_registry tenants_;
    mutable locking_type lock_;
};

}} // namespace kvcache
