// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <concepts>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

struct codec_role;
struct storage_role;
struct hash_role;
struct index_role;
struct eviction_role;
struct recompute_role;
struct tier_role;
struct observer_role;
struct locking_role;
struct layers_role;

namespace detail {

template <class Role, class... Roles>
inline constexpr bool one_of_roles = (std::same_as<Role, Roles> || ...);

template <class P>
concept names_its_role = requires {
    typename P::role;
};

} // namespace detail

/// The type that a policy's `open` returns for arguments of these types.
template <class P, class... Arguments>
using opened_by = decltype(std::declval<const P&>().open(std::declval<const Arguments&>()...));

/// The role of a policy: `P::role`, unless specialized for a type you do not own.
template <class P>
struct role_of {};

/// The role that a policy names as its member `role`.
template <detail::names_its_role P>
struct role_of<P> {
    using type = typename P::role;
};

/// One of the roles of a cache.
template <class Role>
concept known_role = detail::one_of_roles<Role, codec_role, storage_role, hash_role, index_role, eviction_role,
                                          recompute_role, tier_role, observer_role, locking_role, layers_role>;

/// A type that names the role it plays.
template <class P>
concept policy = known_role<typename role_of<P>::type>;

/// A policy with the given role.
template <class P, class Role>
concept plays = policy<P> && std::same_as<typename role_of<P>::type, Role>;

}} // namespace kvcache
