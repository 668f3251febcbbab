// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/basic_cache.hpp>
#include <kvcache/cache/check_policies.hpp>
#include <kvcache/cache/config.hpp>
#include <kvcache/codec/external.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/eviction/learned_reuse.hpp>
#include <kvcache/hash/xxh3.hpp>
#include <kvcache/index/radix.hpp>
#include <kvcache/locking/none.hpp>
#include <kvcache/observer/none.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/tier/none.hpp>

#include <concepts>
#include <cstddef>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI {

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
        typename slot<locking_role, locking::none, Ps...>::type>;
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
template <class Cache, class Codec, class Storage>
[[nodiscard]] result<void> check_config(const cache_config& config, const Codec& codec,
                                        [[maybe_unused]] const Storage& storage) {
    if (!config.shape.valid())
        return error{error_code::out_of_range, "shape",
                     "a page shape has no extent that is zero or too large, and tokens is a multiple of 16"};
    if (Cache::has_tier && config.id == identity{})
        return error{error_code::mismatched, "identity", "a cache with a tier has an identity"};
    const std::size_t page_bytes = codec.open(config.shape).page_bytes(), pages = config.limit.pages_of(page_bytes);
    if (pages == 0)
        return error{error_code::out_of_range, "limit",
                     joined({"a limit of ", std::to_string(config.limit.bytes),
                             " bytes is less than one page, which has ", std::to_string(page_bytes)})};
    if constexpr (requires { static_cast<bool>(storage.on_move); })
        if (config.merge_equal_pages && !storage.on_move)
            return error{error_code::mismatched, "merge_equal_pages",
                         "external memory has on_move, or the cache has merge_equal_pages = false"};
    constexpr std::size_t records_bytes = 256; // what the cache remembers of a page
    const auto machine =
        static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
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

    template <class... Given>
    [[nodiscard]] static result<void> check(const cache_config& config, const std::tuple<Given...>& given) {
        return check_config<opened>(config, take<Codec>(given), take<Storage>(given));
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
          class Observer, class Locking>
    requires(!(codec_policy<Codec> && storage_policy<Storage> && hash_policy<Hash> && index_policy<Index> &&
               eviction_policy<Eviction> && recompute_policy<Recompute> && tier_policy<Tier> &&
               observer_policy<Observer> && locking_policy<Locking>))
class basic_cache<cache_policies<Codec, Storage, Hash, Index, Eviction, Recompute, Tier, Observer, Locking>>
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

public:
    basic_cache(cache_config config,
                cache_policies<Codec, Storage, Hash, Index, Eviction, Recompute, Tier, Observer, Locking> policies);
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
        the_fields_are_shape_of_layers_kv_heads_head_dim_and_tokens_limit_of_pages_and_bytes_id_tenants_and_merge_equal_pages>
[[nodiscard]] detail::unknown_arguments<Fields> make_cache(...)
#ifdef __clang__
    ;
#else
    = delete;
#endif

}} // namespace kvcache
