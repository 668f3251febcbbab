// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/basic_cache.hpp>
#include <kvcache/cache/config.hpp>
#include <kvcache/cache/page_budget.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/external.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/learned_reuse.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/hash/xxh3.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/radix.hpp>
#include <kvcache/layers/concept.hpp>
#include <kvcache/layers/uniform.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/locking/none.hpp>
#include <kvcache/observer/concept.hpp>
#include <kvcache/observer/none.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/none.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Policies that cannot be composed, and why, in words. A misuse is the type of the cache that such policies would make.
// It has the members of a standard cache, so that the message is the only error. Compilers print the names of the
// policies as arguments of the misuse, and each static_assert prints the policy again.

namespace kvcache { inline namespace KVCACHE_ABI {
namespace detail {

/// Satisfied if a policy has everything that its role requires.
template <class P>
concept complete_policy =
    codec_policy<P> || storage_policy<P> || hash_policy<P> || index_policy<P> || eviction_policy<P> ||
    recompute_policy<P> || tier_policy<P> || observer_policy<P> || locking_policy<P> || layers_policy<P>;

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
    the_fields_are_shape_of_layers_kv_heads_head_dim_and_tokens_limit_of_pages_and_bytes_id_tenants_merge_equal_pages_and_fair_tenants;

/// Arguments that make_cache does not take.
template <class Fields>
struct unknown_arguments : standard_cache<Fields>::type {
    static_assert(holds_for<false, Fields>, "make_cache takes {.shape = {.layers, .kv_heads, .head_dim, .tokens}, "
                                            ".limit = {.bytes, .pages}, .id, .tenants, "
                                            ".merge_equal_pages, .fair_tenants} and policies");
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
struct incomplete<layers_role, P> : standard_cache<P>::type {
    static_assert(holds_for<false, P>, "the layers of a cache are layers::uniform or layers::grouped");
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

} // namespace detail

namespace storage {
struct external;
}

namespace detail {

template <class P, class... Ps>
inline constexpr bool alone = (0 + ... + int(plays<Ps, typename role_of<P>::type>)) == 1;

} // namespace detail

/// Satisfied if no two policies play the same role.
template <class... Ps>
concept one_policy_a_role = (detail::alone<Ps, Ps...> && ...);

namespace detail {

// The codec of a cache that is given none.
template <class Storage>
struct standard_codec {
    using type = codec::f32;
};
template <>
struct standard_codec<kvcache::storage::external> {
    using type = codec::external;
};

// Policies that cannot be composed: the type says why.
template <class... Ps>
struct compose : first_misuse<Ps...> {};

template <complete_policy... Ps>
    requires one_policy_a_role<Ps...>
struct compose<Ps...> {
    using storage = typename slot<storage_role, kvcache::storage::heap, Ps...>::type;
    using policies = cache_policies<
        typename slot<codec_role, typename standard_codec<storage>::type, Ps...>::type, storage,
        typename slot<hash_role, hash::xxh3, Ps...>::type, typename slot<index_role, index::radix, Ps...>::type,
        typename slot<eviction_role, eviction::learned_reuse, Ps...>::type,
        typename slot<recompute_role, recompute::exact_prefix, Ps...>::type,
        typename slot<tier_role, tier::none, Ps...>::type, typename slot<observer_role, observer::none, Ps...>::type,
        typename slot<locking_role, locking::none, Ps...>::type,
        typename slot<layers_role, layers::uniform, Ps...>::type>;
    using type = basic_cache<policies>;
};

template <class>
struct standard_cache {
    using type = typename compose<>::type;
};

template <class T, class... Us>
inline constexpr bool one_of = (std::is_same_v<T, Us> || ...);

// The policy of type Wanted among the given ones, or one with its standard options.
template <class Wanted, class... Given>
[[nodiscard]] constexpr Wanted take(const std::tuple<Given...>& given) {
    if constexpr (one_of<Wanted, Given...>)
        return std::get<Wanted>(given);
    else
        return Wanted{};
}

// Checks what a cache is opened for. Errors: those of open_cache, except a failed allocation.
template <class Cache, class Codec, class Storage, class Layers>
[[nodiscard]] result<void> check_config(const cache_config& config, const Codec& codec,
                                        [[maybe_unused]] const Storage& storage, const Layers& layers) {
    if constexpr (requires { layers.layout; })
        if (auto right = check_layers<typename Cache::core_type>(layers, config.limit); !right)
            return right;
    const page_shape shape = shape_of(config.shape, layers);
    if (!has_pages_of<typename Cache::codec_type>(shape))
        return error{error_code::out_of_range, "shape", shape_rule<typename Cache::codec_type>};
    if (Cache::has_tier && config.id == identity{})
        return error{error_code::mismatched, "identity", "a cache with a tier has an identity"};
    const std::size_t page_bytes = codec.open(shape).page_bytes(),
                      pages = pages_in(config.limit, layers, codec, page_bytes);
    if (pages == 0)
        return error{error_code::out_of_range, "limit",
                     joined({"a limit of ", std::to_string(config.limit.bytes),
                             " bytes is less than one page, which has ", std::to_string(page_bytes)})};
    if constexpr (requires { static_cast<bool>(storage.on_move); })
        if (config.merge_equal_pages && !storage.on_move)
            return error{error_code::mismatched, "merge_equal_pages",
                         "external memory has on_move, or the cache has merge_equal_pages = false"};
    constexpr std::size_t records_bytes = 256; // what the cache remembers of a page
    const std::uint64_t known = platform::machine_bytes(), addresses = std::numeric_limits<std::size_t>::max();
    const std::uint64_t machine = known == 0 ? addresses : std::min(known, addresses);
    if (pages > machine / records_bytes)
        return error{error_code::out_of_memory, "limit",
                     joined({"the records of ", std::to_string(pages), " pages do not fit into the machine's ",
                             std::to_string(machine), " bytes"})};
    return {};
}

// Only declared for a misuse.
template <class Cache>
struct opener {
    template <class... Given>
    [[nodiscard]] static Cache open(cache_config config, const std::tuple<Given...>& given);
};
template <class Codec, class Storage, class... Roles>
struct opener<basic_cache<cache_policies<Codec, Storage, Roles...>>> {
    using opened = basic_cache<cache_policies<Codec, Storage, Roles...>>;
    using layers = typename slot<layers_role, layers::uniform, Roles...>::type;

    template <class... Given>
    [[nodiscard]] static result<void> check(const cache_config& config, const std::tuple<Given...>& given) {
        return check_config<opened>(config, take<Codec>(given), take<Storage>(given), take<layers>(given));
    }
    template <class... Given>
    [[nodiscard]] static opened open(cache_config config, const std::tuple<Given...>& given) {
        return {std::move(config), {take<Codec>(given), take<Storage>(given), take<Roles>(given)...}};
    }
};

} // namespace detail

/// Policies that are not in the order of cache_policies. As for every misuse, the members are those of a standard
/// cache.
template <class Codec, class Storage, class Hash, class Index, class Eviction, class Recompute, class Tier,
          class Observer, class Locking, class Layers>
    requires(!(codec_policy<Codec> && storage_policy<Storage> && hash_policy<Hash> && index_policy<Index> &&
               eviction_policy<Eviction> && recompute_policy<Recompute> && tier_policy<Tier> &&
               observer_policy<Observer> && locking_policy<Locking> && layers_policy<Layers>))
class basic_cache<cache_policies<Codec, Storage, Hash, Index, Eviction, Recompute, Tier, Observer, Locking, Layers>>
    : public detail::standard_cache<Codec>::type {
    static_assert(detail::holds_for<codec_policy<Codec>, Codec, codec_role>,
                  "the first of cache_policies is a codec_policy");
    static_assert(detail::holds_for<storage_policy<Storage>, Storage, storage_role>,
                  "the second of cache_policies is a storage_policy");
    static_assert(detail::holds_for<hash_policy<Hash>, Hash, hash_role>,
                  "the third of cache_policies is a hash_policy");
    static_assert(detail::holds_for<index_policy<Index>, Index, index_role>,
                  "the fourth of cache_policies is an index_policy");
    static_assert(detail::holds_for<eviction_policy<Eviction>, Eviction, eviction_role>,
                  "the fifth of cache_policies is an eviction_policy");
    static_assert(detail::holds_for<recompute_policy<Recompute>, Recompute, recompute_role>,
                  "the sixth of cache_policies is a recompute_policy");
    static_assert(detail::holds_for<tier_policy<Tier>, Tier, tier_role>,
                  "the seventh of cache_policies is a tier_policy");
    static_assert(detail::holds_for<observer_policy<Observer>, Observer, observer_role>,
                  "the eighth of cache_policies is an observer_policy");
    static_assert(detail::holds_for<locking_policy<Locking>, Locking, locking_role>,
                  "the ninth of cache_policies is a locking_policy");
    static_assert(detail::holds_for<layers_policy<Layers>, Layers, layers_role>,
                  "the tenth of cache_policies is a layers_policy");

public:
    basic_cache(
        cache_config config,
        cache_policies<Codec, Storage, Hash, Index, Eviction, Recompute, Tier, Observer, Locking, Layers> policies);
};

/// The cache composed of these policies, in any order; an omitted role gets its standard policy.
template <class... Ps>
using cache = typename detail::compose<Ps...>::type;

/// Opens a cache from policies given by value in any order. Errors: out_of_range, for a shape that is not valid or a
/// limit below one page; out_of_memory, if the records of so many pages do not fit into memory; mismatched, for a tier
/// without an identity. The field is "shape", "limit" or "identity".
template <class... Ps>
[[nodiscard]] result<typename detail::compose<Ps...>::type> open_cache(cache_config config, Ps... policies) {
    using opened = cache<Ps...>;
    const std::tuple given(std::move(policies)...);
    if (const auto right = detail::opener<opened>::check(config, given); !right)
        return right.error();
    std::optional<opened> made;
    if (!detail::completes<std::bad_alloc>(
            [&] { made.emplace(detail::opener<opened>::open(std::move(config), given)); }))
        return error{error_code::out_of_memory, "limit", "there is no memory for the records of the cache's pages"};
    return std::move(*made);
}

/// The same for a program that knows its values. Requires: the configuration is one that open_cache takes.
/// Throws: bad_alloc.
template <class... Ps>
[[nodiscard]] typename detail::compose<Ps...>::type make_cache(cache_config config, Ps... policies) {
    return detail::opener<cache<Ps...>>::open(std::move(config), std::tuple(std::move(policies)...));
}

/// Arguments that do not fit, as a field that cache_config or page_shape lacks. GCC converts arguments before it looks
/// at the result's type, and an initializer list has no type; it names a deleted function first.
template <
    class Fields = detail::
        the_fields_are_shape_of_layers_kv_heads_head_dim_and_tokens_limit_of_pages_and_bytes_id_tenants_merge_equal_pages_and_fair_tenants>
[[nodiscard]] detail::unknown_arguments<Fields> make_cache(...)
#ifdef __clang__
    ;
#else
    = delete;
#endif

}} // namespace kvcache
