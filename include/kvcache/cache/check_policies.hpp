// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/observer/concept.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/tier/concept.hpp>

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

// Policies that cannot be composed, and why, in words. A misuse is the type of the cache that such policies would make.
// It has the members of a standard cache, so that the message is the only error. Compilers print the names of the
// policies as arguments of the misuse, and each static_assert prints the policy again. An entry header includes this
// file directly: GCC prints the path of includes before its message.

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Satisfied if a policy has everything that its role requires.
template <class P>
concept complete_policy = codec_policy<P> || storage_policy<P> || hash_policy<P> || index_policy<P> ||
    eviction_policy<P> || recompute_policy<P> || tier_policy<P> || observer_policy<P> || locking_policy<P>;

// The policy among Ps that plays Role, or Standard if none does.
template <class Role, class Standard, class... Ps>
struct slot {
    using type = Standard;
};
template <class Role, class Standard, class P, class... Ps>
struct slot<Role, Standard, P, Ps...> : slot<Role, Standard, Ps...> {};
template <class Role, class Standard, plays<Role> P, class... Ps>
struct slot<Role, Standard, P, Ps...> {
    using type = P;
};

// The standard cache; its argument only delays the lookup.
template <class>
struct standard_cache;

// `Holds`, printed with the names of the policies in question.
template <bool Holds, class... Ps>
inline constexpr bool holds_for = Holds;

// The state that a policy opens, or void.
template <class P, class... Arguments>
struct state_of {
    using type = void;
};
template <class P, class... Arguments>
    requires requires {
        typename opened_by<P, Arguments...>;
    }
struct state_of<P, Arguments...> {
    using type = opened_by<P, Arguments...>;
};

struct
    the_fields_are_shape_of_layers_kv_heads_head_dim_and_tokens_limit_of_pages_and_bytes_id_tenants_and_merge_equal_pages;

/// Arguments that make_cache does not take.
template <class Fields>
struct unknown_arguments : standard_cache<Fields>::type {
    static_assert(holds_for<false, Fields>, "make_cache takes {.shape = {.layers, .kv_heads, .head_dim, .tokens}, "
                                            ".limit = {.bytes, .pages}, .id, .tenants, "
                                            ".merge_equal_pages} and policies");
};

/// A type without a role, or with an unknown one.
template <class P>
struct names_no_role : standard_cache<P>::type {
    static_assert(holds_for<false, P>,
                  "a policy names its role, one of core/role.hpp: using role = kvcache::eviction_role;");
};

/// Two policies for one role.
template <class Role, class A, class B>
struct both_play : standard_cache<A>::type {
    static_assert(holds_for<false, Role, A, B>,
                  "two policies both play the same role; a cache has one policy for each role");
};

/// A policy that lacks a member that its role requires. The first one that is missing is reported.
template <class Role, class P>
struct incomplete;

template <class P>
struct incomplete<codec_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, page_shape>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool sized = opens && requires(const state s) {
        { s.page_bytes() } -> std::same_as<std::size_t>;
        { s.name() } -> std::same_as<std::string>;
    };
    static constexpr bool keys =
        sized && requires(const state s, std::span<const std::byte> page, page_tile at, std::span<float> to) {
        { s.keys(page, at, to) } -> std::same_as<const float*>;
    };
    static constexpr bool values =
        keys && requires(const state s, std::span<const std::byte> page, page_tile at, std::span<float> to) {
        { s.values(page, at, to) } -> std::same_as<const float*>;
    };
    static_assert(holds_for<opens, P>, "a codec needs: state open(page_shape) const");
    static_assert(holds_for < !opens || sized, P >,
                  "a codec's state needs: std::size_t page_bytes() const; std::string name() const");
    static_assert(holds_for < !sized || keys, P >,
                  "a codec's state needs: const float* keys(std::span<const std::byte> "
                  "page, page_tile, std::span<float> scratch) const");
    static_assert(holds_for < !keys || values, P >,
                  "a codec's state needs: const float* values(std::span<const std::byte> "
                  "page, page_tile, std::span<float> scratch) const");
    static_assert(holds_for<!values, P>,
                  "a codec's state needs encode and copy of a row_writer, or all of a page_writer "
                  "(codec/concept.hpp)");
};

template <class P>
struct incomplete<storage_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, std::size_t, std::size_t>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool moves = opens && std::movable<state>;
    static constexpr bool acquires = moves && requires(state s, page_id page) {
        { s.acquire(page) } -> std::same_as<bool>;
    };
    static constexpr bool releases = acquires && requires(state s, page_id page) {
        { s.release(page) }
        noexcept;
    };
    static_assert(holds_for<opens, P>, "a storage needs: state open(std::size_t pages, std::size_t page_bytes) const");
    static_assert(holds_for < !opens || moves, P >, "a storage's state is movable");
    static_assert(holds_for < !moves || acquires, P >, "a storage's state needs: bool acquire(page_id)");
    static_assert(holds_for < !acquires || releases, P >, "a storage's state needs: void release(page_id) noexcept");
    static_assert(holds_for<!releases, P>, "a storage's state needs: std::span<std::byte> bytes(page_id) const");
};

template <class P>
struct incomplete<hash_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, identity>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool roots = opens && requires(const state s) {
        { s.root() } -> std::same_as<digest>;
    };
    static_assert(holds_for<opens, P>, "a hash needs: state open(const identity&) const");
    static_assert(holds_for < !opens || roots, P >, "a hash's state needs: digest root() const");
    static_assert(holds_for<!roots, P>,
                  "a hash's state needs: digest chain(digest before, std::span<const token_id> run) const");
};

template <class P>
struct incomplete<index_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, page_shape, std::size_t>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool matches = opens && requires(const state c, std::span<const token_id> tokens) {
        { c.match(tokens) } -> std::same_as<index_match>;
    };
    static constexpr bool inserts =
        matches && requires(state s, std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        { s.insert(parent, tokens, page) } -> std::same_as<insertion>;
        s.erase(page);
    };
    static constexpr bool looks_up = inserts && requires(const state c, page_id page) {
        { c.contains(page) } -> std::same_as<bool>;
        { c.leaf(page) } -> std::same_as<bool>;
    };
    static constexpr bool has_parents = looks_up && requires(const state c, page_id page) {
        { c.parent(page) } -> std::same_as<std::optional<page_id>>;
    };
    static_assert(holds_for<opens, P>, "an index needs: state open(page_shape, std::size_t pages) const");
    static_assert(holds_for < !opens || matches, P >,
                  "an index's state needs: index_match match(std::span<const token_id>) const");
    static_assert(holds_for < !matches || inserts, P >,
                  "an index's state needs: insertion insert(std::optional<page_id> parent, std::span<const token_id>, "
                  "page_id); void erase(page_id)");
    static_assert(holds_for < !inserts || looks_up, P >,
                  "an index's state needs: bool contains(page_id) const; bool leaf(page_id) const");
    static_assert(holds_for < !looks_up || has_parents, P >,
                  "an index's state needs: std::optional<page_id> parent(page_id) const");
    static_assert(holds_for<!has_parents, P>, "an index's state needs: std::span<const token_id> run(page_id) const");
};

template <class P>
struct incomplete<eviction_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, eviction_capacity>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool admits = opens && requires(state s, slot_id slot, const eviction_entry& entry) {
        s.admit(slot, entry);
    };
    static constexpr bool touches = admits && requires(state s, slot_id slot) { s.touch(slot); };
    static constexpr bool erases = touches && requires(state s, slot_id slot) { s.erase(slot); };
    static_assert(holds_for<opens, P>, "an eviction policy needs: state open(eviction_capacity) const");
    static_assert(holds_for < !opens || admits, P >,
                  "an eviction state needs: void admit(slot_id, const eviction_entry&)");
    static_assert(holds_for < !admits || touches, P >, "an eviction state needs: void touch(slot_id)");
    static_assert(holds_for < !touches || erases, P >, "an eviction state needs: void erase(slot_id)");
    static_assert(holds_for<!erases, P>,
                  "an eviction state needs: std::optional<slot_id> victim(const auto& is_evictable)");
};

template <class P>
struct incomplete<recompute_role, P> : standard_cache<P>::type {
    static constexpr bool opens = !std::is_void_v<typename state_of<P, page_shape>::type>;
    static_assert(holds_for<opens, P>, "a recompute policy needs: state open(page_shape) const");
    static_assert(holds_for<!opens, P>,
                  "a recompute state needs: std::size_t first_computed(std::size_t hit, std::size_t total) const");
};

template <class P>
struct incomplete<tier_role, P> : standard_cache<P>::type {
    using state = typename state_of<P>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool moves = opens && std::movable<state>;
    static constexpr bool reads = moves && requires(state s, const sha256_digest& name, const tier_use& use) {
        { s.read(name, use) } -> std::same_as<result<bool>>;
        { s.contains(name) } -> std::same_as<bool>;
    };
    static constexpr bool writes = reads && requires(state s, const tier_entry& entry, const sha256_digest& name,
                                                     std::span<const std::span<const std::byte>> pieces) {
        { s.put(entry, pieces) } -> std::same_as<result<void>>;
        { s.erase(name) } -> std::same_as<result<void>>;
        { s.flush() } -> std::same_as<result<void>>;
    };
    static_assert(holds_for<opens, P>, "a tier needs: state open() const");
    static_assert(holds_for < !opens || moves, P >, "a tier's state is movable");
    static_assert(holds_for < !moves || reads, P >,
                  "a tier's state needs: result<bool> read(const sha256_digest&, const auto& use); bool contains(const "
                  "sha256_digest&)");
    static_assert(holds_for < !reads || writes, P >,
                  "a tier's state needs: result<void> put(const tier_entry&, std::span<const std::span<const "
                  "std::byte>>); result<void> erase(const sha256_digest&); result<void> flush()");
    static_assert(holds_for<!writes, P>,
                  "a tier's state needs: result<void> status() const; tier_counts counts() const");
};

template <class P>
struct incomplete<observer_role, P> : standard_cache<P>::type {
    static constexpr bool opens = !std::is_void_v<typename state_of<P>::type>;
    static_assert(holds_for<opens, P>, "an observer needs: state open() const");
    static_assert(holds_for<!opens, P>, "an observer's state needs: void on(const event&)");
};

template <class P>
struct incomplete<locking_role, P> : standard_cache<P>::type {
    static_assert(holds_for<false, P>, "a locking policy needs a type `state` with a default constructor, void lock() "
                                       "and void unlock()");
};

/// The first misuse among the policies. Requires: there is one.
template <class P, class... Ps>
struct first_misuse {
    using type = typename first_misuse<Ps...>::type;
};
template <class P, class... Ps>
    requires(!policy<P>)
struct first_misuse<P, Ps...> {
    using type = names_no_role<P>;
};
template <policy P, class... Ps>
    requires(!complete_policy<P>)
struct first_misuse<P, Ps...> {
    using type = incomplete<typename role_of<P>::type, P>;
};
template <complete_policy P, class... Ps>
    requires(plays<Ps, typename role_of<P>::type> || ...)
struct first_misuse<P, Ps...> {
    using type = both_play<typename role_of<P>::type, P, typename slot<typename role_of<P>::type, void, Ps...>::type>;
};

}}} // namespace kvcache::detail
