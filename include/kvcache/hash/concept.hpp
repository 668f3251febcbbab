// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The working state of a hash. `root` is the digest of the identity, before any token. `chain` is the digest of a
/// preceding digest and the run of tokens after it.
template <class S>
concept hash_state = requires(const S s, digest before, std::span<const token_id> run) {
    { s.root() } -> std::same_as<digest>;
    { s.chain(before, run) } -> std::same_as<digest>;
};

/// A policy that names a run of tokens together with everything before it.
template <class P>
concept hash_policy = plays<P, hash_role> && requires(const P p, const identity& id) {
    p.open(id);
} && hash_state<opened_by<P, identity>>;

}} // namespace kvcache
