// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvcache {

/// What an eviction policy is told of a newcomer.
struct entry {
    std::uint64_t key = 0;              ///< Names the content, so that a ghost recognises it when it returns.
    std::size_t bytes = 0;              ///< What it takes.
    double cost = 0.0;                  ///< What a hit saves, in seconds, given that its parent is present.
    std::optional<slot_id> parent = {}; ///< The entry that it continues.
};

/// May this slot leave now? No while somebody holds it or an entry that continues it is present. It stands for any
/// callable of this form: a `victim` is a template over its argument.
struct leave_check {
    bool operator()(slot_id slot) const;
};

/// The working state of an eviction policy. `admit` ranks a newcomer, `touch` says it was used, `erase` forgets it
/// (evicted or withdrawn), `victim` names the next to leave among those for which its argument answers true; it takes
/// nothing away, `erase` follows. What has no memory to admit throws bad_alloc and has changed nothing; the others do
/// not throw. Whoever frees a chain touches it tail first, so that children leave before parents.
template <class S>
concept eviction_state = requires(S s, slot_id slot, const entry& newcomer, const leave_check& may_leave) {
    s.admit(slot, newcomer);
    s.touch(slot);
    s.erase(slot);
    { s.victim(may_leave) } -> std::same_as<std::optional<slot_id>>;
};

/// Which entry leaves when room is needed.
template <class P>
concept eviction_policy = plays<P, eviction_role> && requires(const P p, std::size_t slots) {
    { p.open(slots) } -> eviction_state;
};

} // namespace kvcache
