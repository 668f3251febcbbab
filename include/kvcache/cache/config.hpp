// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/layers/uniform.hpp>
#include <kvcache/tier/none.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A salt that separates a tenant's prompts from all others, in the index and in every name: a nonempty byte string. It
/// need not be secret to separate tenants within one process; names that leave the process are only as secret as the
/// salt.
class tenant_salt {
public:
    /// Requires: `bytes` is not empty.
    explicit tenant_salt(std::string bytes) : bytes_(std::move(bytes)) {
        require(!bytes_.empty(), "a tenant's salt is not empty");
    }
    [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

private:
    std::string bytes_;
};

/// The page usage of a tenant.
struct tenant_usage {
    std::size_t pages = 0;     ///< Pages of the tenant, in use or evictable.
    std::size_t evictable = 0; ///< Of these, pages without references, cached for its next match.
    std::size_t quota = std::numeric_limits<std::size_t>::max(); ///< Maximum number of pages.

    friend constexpr bool operator==(const tenant_usage&, const tenant_usage&) = default;
};

class tenant_registry;

/// A tenant of a cache, as `open_tenant` returns it. A prompt that is acquired for a tenant finds only what the same
/// tenant has stored. Copies are the same tenant; while one exists, its number is not given to another. The default
/// stands for a cache without tenants. Requires: a copy outlives the tenant's sequences and leases.
class tenant {
public:
    tenant() = default;
    /// The tenant with this number in the cache of the registry. `uses` counts the copies.
    tenant(const tenant_registry& of, std::uint32_t number, std::shared_ptr<const void> uses)
        : of_(&of), number_(number), uses_(std::move(uses)) {}

    /// The number in the cache: 0 for none, 1 for the pages that belong to no tenant.
    [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
    [[nodiscard]] bool belongs_to(const tenant_registry& of) const noexcept { return of_ == &of; }

    friend bool operator==(const tenant&, const tenant&) = default;

private:
    const tenant_registry* of_ = nullptr;
    std::uint32_t number_ = 0;
    std::shared_ptr<const void> uses_;
};

/// The tenants of a cache by salt. Number 1 has no salt: all callers without a salt share it. It stays where it is: its
/// tenants point to it.
class tenant_registry {
public:
    /// For at most `most` tenants with a salt.
    explicit tenant_registry(std::size_t most) : most_(most) {}
    tenant_registry(const tenant_registry&) = delete;
    tenant_registry& operator=(const tenant_registry&) = delete;

    /// The maximum number of tenants with a salt; 0 in a cache without tenants.
    [[nodiscard]] std::size_t most() const noexcept { return most_; }
    /// The number of the tenants, the shared one included; the highest number too.
    [[nodiscard]] std::size_t size() const noexcept { return accounts_.size(); }
    [[nodiscard]] bool full() const noexcept { return size() > most_; }
    [[nodiscard]] const std::string& salt(std::uint32_t number) const { return accounts_[number - 1].salt; }

    /// The tenant of a salt, used now; nullopt if there is none.
    [[nodiscard]] std::optional<tenant> find(const std::string& salt) {
        for (std::uint32_t number = 2; number <= size(); ++number)
            if (accounts_[number - 1].salt == salt)
                return use(number);
        return std::nullopt;
    }

    /// What the registry keeps of one tenant.
    struct account {
        std::string salt = {};
        std::shared_ptr<const std::uint64_t> copies = std::make_shared<const std::uint64_t>(); ///< Counts the copies.
        std::uint64_t used = 0; ///< When it was last opened.
    };
    /// Allocates memory for one more. Throws: bad_alloc; nothing has changed then.
    void reserve() { accounts_.reserve(size() + 1); }
    /// Adds a tenant and returns its number. Requires: `reserve` was called for it.
    std::uint32_t add(account one) noexcept {
        accounts_.push_back(std::move(one));
        return static_cast<std::uint32_t>(size());
    }
    /// Gives a number to another salt.
    void replace(std::uint32_t number, std::string salt) noexcept { accounts_[number - 1].salt = std::move(salt); }
    /// A copy of a tenant, used now.
    [[nodiscard]] tenant use(std::uint32_t number) noexcept {
        accounts_[number - 1].used = ++uses_;
        return {*this, number, accounts_[number - 1].copies};
    }

    /// The tenant to replace: of those without a copy the one with the fewest pages, and of these the one that was not
    /// used for the longest time. `pages_of(number)` is the number of a tenant's pages. Returns 0 if all have copies.
    template <class PagesOf>
    [[nodiscard]] std::uint32_t replaceable(PagesOf&& pages_of) const {
        std::uint32_t found = 0;
        std::pair<std::size_t, std::uint64_t> least;
        for (std::uint32_t number = 2; number <= size(); ++number) {
            const account& one = accounts_[number - 1];
            const std::pair<std::size_t, std::uint64_t> rank(pages_of(number), one.used);
            if (one.copies.use_count() == 1 && (found == 0 || rank < least)) {
                found = number;
                least = rank;
            }
        }
        return found;
    }

    /// The error where all tenants are in use.
    [[nodiscard]] error refuse() const {
        return {error_code::out_of_range, "tenants",
                detail::joined({"there are ", std::to_string(most_), " tenants already, as many as there may be"})};
    }

private:
    std::size_t most_;
    std::vector<account> accounts_; // by number, from 1
    std::uint64_t uses_ = 0;
};

/// What a cache is opened for.
struct cache_config {
    page_shape shape = {};
    cache_limits limit = {};
    identity id = {};        ///< Everything else that determines a page's bits.
    std::size_t tenants = 0; ///< The maximum number of tenants; 0 for a cache without tenants.
    /// Whether a sequence whose page fills takes a cached page with the same content instead, and frees its own. If
    /// not, both keep their pages, no entry of a page table ever changes at a commit, and later prompts share the
    /// first.
    bool merge_equal_pages = true;
    /// Whether pages are evicted from the tenant with the most pages, and for a tenant from none that has no more than
    /// itself (cache/tenant_quotas.hpp). If not, the eviction policy chooses among the pages of all tenants.
    bool fair_tenants = false;
};

/// One policy for each role of a cache, in this order. basic_cache requires that each has its role.
template <class Codec, class Storage, class Hash, class Index, class Eviction, class Recompute, class Tier,
          class Observer, class Locking, class Layers = layers::uniform>
struct cache_policies {
    Codec codec = {};
    Storage storage = {};
    Hash hash = {};
    Index index = {};
    Eviction eviction = {};
    Recompute recompute = {};
    Tier tier = {};
    Observer observer = {};
    Locking locking = {};
    Layers layers = {};
};

/// What acquire does about a prefix of the prompt that another lease computes at the moment, made by acquire too.
enum class pending_prefix {
    compute, ///< Nothing: both compute it.
    refuse,  ///< Returns the error `pending`; acquire again when a lease has ended.
    wait,    ///< Waits until no lease computes more of it than is cached. Needs a locking with `wait`; otherwise it
             ///< refuses.
};

/// How rows are reserved.
struct reserve_options {
    /// Rows that are written and attended at a time, at most, in ascending order. A codec that encodes whole pages
    /// keeps no more of them in full precision.
    std::size_t max_batch_tokens = std::numeric_limits<std::size_t>::max();
    /// Whether all rows are committed, or none: they come from elsewhere. Layer groups then have blocks only for those
    /// that the next query reads.
    bool whole = false;
};

/// How a prompt is acquired.
struct acquire_options {
    kvcache::tenant tenant = {}; ///< Whose prompt it is; required by a cache with tenants.
    pending_prefix pending = pending_prefix::compute;
    std::size_t max_batch_tokens = reserve_options{}.max_batch_tokens; ///< See reserve_options.
    bool load = true; ///< Whether pages that only the tier has are loaded.
    /// Rows that the lease reserves at most, the first to compute. With layer groups a lease has the window blocks of
    /// all its rows, so that a long prompt takes less memory in parts: this one, and reserved ones after it.
    std::size_t rows = std::numeric_limits<std::size_t>::max();
};

/// Rows to reserve for a sequence.
template <class Cache>
struct reservation {
    typename Cache::sequence* to = nullptr;
    std::size_t rows = 0;
    reserve_options options = {};
};

/// The occupancy of a cache. Every page is free, in use or evictable.
struct cache_stats {
    std::size_t pages = 0;      ///< Number of pages within the cache's limit.
    std::size_t free = 0;       ///< Pages that hold nothing: never used, or freed.
    std::size_t in_use = 0;     ///< Pages referenced by live sequences, each counted once however many share it.
    std::size_t evictable = 0;  ///< Pages without references, cached for the next match until space is needed.
    std::size_t page_bytes = 0; ///< Bytes of a page.
    std::size_t sequences = 0;  ///< Live sequences and matches.

    std::size_t residual_pages = 0; ///< Pages with attached full-precision rows, for a codec of whole pages.
    std::size_t residual_bytes = 0; ///< What those take of the budget.

    friend constexpr bool operator==(const cache_stats&, const cache_stats&) = default;
};

/// Counters of a cache's use of its tier.
struct tier_stats {
    std::uint64_t asked = 0;          ///< Prompts with whole pages that were not in memory.
    std::uint64_t hits = 0;           ///< Of these, prompts of which the tier had pages.
    std::uint64_t loaded_tokens = 0;  ///< Tokens loaded, verified and published.
    std::uint64_t refused = 0;        ///< Records that were damaged or not the requested ones; see tier_client.
    std::uint64_t failed = 0;         ///< Tier calls that failed, and loads and hand-overs that ran out of memory.
    std::uint64_t no_room = 0;        ///< Failed attempts to allocate pages for records; one prompt can have several.
    std::uint64_t slower = 0;         ///< Prompts with pages in the tier that are faster to compute.
    std::uint64_t handed_over = 0;    ///< Records given to the tier, which may write them later, or drop them.
    std::uint64_t stored = 0;         ///< Records that the tier has written.
    std::uint64_t chunks = 0;         ///< Chunks of which records were handed over.
    std::uint64_t loaded_chunks = 0;  ///< Chunks that were found in the tier, loaded and verified.
    std::uint64_t store_failures = 0; ///< Failures that the tier counted, those of its later writes included.
    std::optional<error> last = {};   ///< The error of the last refusal or failure.
};

/// The tier operations of a cache: cache/tier_client.hpp, which <kvcache/tier.hpp> includes.
template <tier_state Tier>
class tier_client;

/// The client of a cache without a tier: it makes no records.
template <>
class tier_client<tier::none::state> {
public:
    tier_client(tier::none::state, const identity&, const std::string&) {}

    [[nodiscard]] tier::none::state& tier() noexcept { return none_; }
    [[nodiscard]] const tier::none::state& tier() const noexcept { return none_; }
    [[nodiscard]] tier_stats stats() const { return {}; }

private:
    tier::none::state none_;
};

namespace detail {

// A host's identity with the fields that the cache itself decides: codec, layout, page size, device backend.
// `policies`: those of the cache.
template <class Codec, class Policies>
[[nodiscard]] identity complete_identity(identity id, const Codec& codec, const page_shape& shape,
                                         [[maybe_unused]] const Policies& policies) {
    id.codec = codec.name();
    id.layout = "key tiles of 16, value rows";
    if constexpr (requires { codec.layout_name(); })
        id.layout = codec.layout_name();
    if constexpr (device_codec_state<Codec>)
        id.backend = codec.backend();
    else
        id.layout += joined({"; ", std::to_string(shape.layers), " layers, ", std::to_string(shape.kv_heads),
                             " KV heads of ", std::to_string(shape.head_dim)});
    if constexpr (requires { policies.layers.layout.name(); })
        id.layout += "; groups: " + policies.layers.layout.name();
    if constexpr (requires { policies.codec.blocks; })
        id.layout += "; blocks in " + policies.codec.blocks.open(shape).name();
    id.page_tokens = shape.tokens;
    return id;
}

// The key of a keyed hash policy, which also authenticates records; empty for a hash without a key.
template <class Hash>
[[nodiscard]] std::string secret_of(const Hash& hash) {
    if constexpr (requires { std::string(hash.key); })
        return hash.key;
    else
        return {};
}

} // namespace detail

}} // namespace kvcache
