// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/concept.hpp>

#include <functional>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Calls functions of the host: for evicted pages, with their tokens and name, for refused reservations, or for every
/// event. A function that is not set is not called. Exceptions are ignored. Cost: a call an event.
struct calling {
    using role = observer_role;
    std::function<void(const event&)> evicted = {}; ///< A page was evicted; its tokens are `run`.
    std::function<void(const event&)> refused = {}; ///< A reservation failed for lack of pages.
    std::function<void(const event&)> any = {};     ///< Any event, these two included.

    class state;
    [[nodiscard]] state open() const;
};

class calling::state {
public:
    explicit state(calling how) : how_(std::move(how)) {}

    void on(const event& what) {
        if (how_.any)
            how_.any(what);
        if (what.kind == event_kind::evicted && how_.evicted)
            how_.evicted(what);
        if (what.kind == event_kind::refused && how_.refused)
            how_.refused(what);
    }

private:
    calling how_;
};

inline calling::state calling::open() const {
    return state(*this);
}

static_assert(observer_policy<calling>);

}}} // namespace kvcache::observer
