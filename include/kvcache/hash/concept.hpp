// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// The working state of a hash: `root` stands for the identity before any token, `chain` for what comes before and a
/// run of tokens after it.
template <class S>
concept hash_state = requires(const S s, digest before, std::span<const token_id> run) {
    { s.root() } -> std::same_as<digest>;
    { s.chain(before, run) } -> std::same_as<digest>;
};

/// How a run of tokens after its past is named.
template <class P>
concept hash_policy = plays<P, hash_role> && requires(const P p, const identity& id) {
    p.open(id);
} && hash_state<opened_by<P, identity>>;

} // namespace kvcache
