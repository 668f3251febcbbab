// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>
#include <kvcache/locking/none.hpp>

#include <concepts>
#include <cstdint>
#include <mutex>
#include <type_traits>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// A cache without a lock does not call one.
template <class Locking>
struct no_guard {
    explicit no_guard(const Locking&) {}
};
template <class Locking>
using guard_of =
    std::conditional_t<std::same_as<Locking, locking::none::state>, no_guard<Locking>, std::lock_guard<Locking>>;

// Holds the lock. At its end it wakes the threads that wait for the lease of a prompt, if one has ended meanwhile.
template <class Locking, class Sequences>
class ending {
public:
    ending(Locking& lock, const Sequences& sequences)
        : lock_(lock), sequences_(sequences), guard_(lock), before_(sequences.prompts_ended()) {}
    ending(ending&&) = delete;
    ending& operator=(ending&&) = delete;
    ~ending() {
        if constexpr (waiting_state<Locking>)
            if (sequences_.prompts_ended() != before_)
                lock_.notify();
    }

private:
    Locking& lock_;
    const Sequences& sequences_;
    guard_of<Locking> guard_;
    std::uint64_t before_;
};

}}} // namespace kvcache::detail
