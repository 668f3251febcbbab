// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/basic_cache.hpp>
#include <kvcache/cache/cache_policies.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/eviction/learned_reuse.hpp>
#include <kvcache/hash/xxh3.hpp>
#include <kvcache/index/radix.hpp>
#include <kvcache/locking/none.hpp>
#include <kvcache/observer/none.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/tier/none.hpp>

#include <tuple>
#include <type_traits>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

namespace detail {

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

template <class... Ps>
struct compose {
    using policies = cache_policies<
        typename slot<codec_role, codec::f32, Ps...>::type, typename slot<storage_role, storage::heap, Ps...>::type,
        typename slot<hash_role, hash::xxh3, Ps...>::type, typename slot<index_role, index::radix, Ps...>::type,
        typename slot<eviction_role, eviction::learned_reuse, Ps...>::type,
        typename slot<recompute_role, recompute::exact_prefix, Ps...>::type,
        typename slot<tier_role, tier::none, Ps...>::type, typename slot<observer_role, observer::none, Ps...>::type,
        typename slot<locking_role, locking::none, Ps...>::type>;
    using type = basic_cache<policies>;
};

template <class P, class... Ps>
inline constexpr bool alone = (0 + ... + int(plays<Ps, typename role_of<P>::type>)) == 1;

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

template <class Cache>
struct opener;
template <class... Roles>
struct opener<basic_cache<cache_policies<Roles...>>> {
    template <class... Given>
    [[nodiscard]] static basic_cache<cache_policies<Roles...>> open(cache_config config,
                                                                    const std::tuple<Given...>& given) {
        return {std::move(config), {take<Roles>(given)...}};
    }
};

} // namespace detail

/// Satisfied if no two policies play the same role.
template <class... Ps>
concept one_policy_a_role = (detail::alone<Ps, Ps...> && ...);

/// The cache composed of these policies, in any order; an omitted role gets its standard policy.
template <policy... Ps>
    requires one_policy_a_role<Ps...>
using cache = typename detail::compose<Ps...>::type;

/// Opens a cache for pages of this shape, within a memory limit, from policies given by value in any order.
template <policy... Ps>
    requires one_policy_a_role<Ps...>
[[nodiscard]] typename detail::compose<Ps...>::type make_cache(page_shape shape, cache_limits limit, Ps... policies) {
    return detail::opener<cache<Ps...>>::open({shape, limit}, std::tuple(std::move(policies)...));
}

/// The same with an identity, which names everything that determines a page's bits.
template <policy... Ps>
    requires one_policy_a_role<Ps...>
[[nodiscard]] typename detail::compose<Ps...>::type make_cache(identity id, page_shape shape, cache_limits limit,
                                                               Ps... policies) {
    return detail::opener<cache<Ps...>>::open({shape, limit, std::move(id)}, std::tuple(std::move(policies)...));
}

} // namespace kvcache
