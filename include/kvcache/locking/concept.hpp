// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/role.hpp>

#include <concepts>
#include <memory>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The working state of a locking policy: a lockable, as std::lock_guard requires, that is never moved. With `wait` and
/// `notify` a thread can wait until a lease ends.
template <class S>
concept locking_state = requires(S& s) {
    s.lock();
    s.unlock();
};

/// A locking under which a thread can wait: `wait` unlocks, waits for `notify`, and locks again.
template <class S>
concept waiting_state = locking_state<S> && requires(S& s) {
    s.wait();
    s.notify();
};

/// A policy that defines how threads share a cache.
template <class P>
concept locking_policy =
    plays<P, locking_role> && std::default_initializable<typename P::state> && locking_state<typename P::state>;

}} // namespace kvcache
