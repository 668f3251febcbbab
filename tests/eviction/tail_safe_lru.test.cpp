// SPDX-License-Identifier: MIT
#include <kvcache/eviction/tail_safe_lru.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct plain_tail_safe {
    std::size_t losable;
    queue order = {};
    std::map<kv::slot_id, kv::eviction_entry> entries = {};
    std::set<kv::slot_id> safe = {};

    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        entries[slot] = newcomer;
        order.push_front(slot);
        safe.erase(slot);
        if (newcomer.length > 0 && newcomer.depth + losable >= newcomer.length)
            safe.insert(slot);
        if (newcomer.depth + 1 != newcomer.length)
            return;
        kv::eviction_entry here = newcomer;
        while (here.parent && in(order, *here.parent) && entries[*here.parent].depth + 1 == here.depth) {
            const kv::slot_id above = *here.parent;
            here = entries[above];
            if (here.depth + losable < newcomer.length && safe.erase(above) > 0)
                to_front(order, above);
        }
    }
    void touch(kv::slot_id slot) { to_front(order, slot); }
    void on_released(kv::slot_id slot) { touch(slot); }
    void erase(kv::slot_id slot) { order.remove(slot); }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        for (const bool is_safe : {true, false}) {
            queue some = order;
            some.remove_if([&](kv::slot_id slot) { return safe.contains(slot) != is_safe; });
            const auto found = oldest(some, [&](kv::slot_id slot) {
                if (!is_evictable(slot))
                    to_front(order, slot);
                return is_evictable(slot);
            });
            if (found)
                return found;
        }
        return std::nullopt;
    }
};

} // namespace

TEST_CASE("tail_safe_lru loses the end of a conversation first, and then the least recently used") {
    for (const std::uint32_t losable : {0u, 1u, 3u})
        same_victims(kv::eviction::tail_safe_lru{.budget = 5 + losable, .next_turn = 5},
                     [&](kv::eviction_capacity) { return plain_tail_safe{losable}; });
    says_what_a_caller_does_wrong(kv::eviction::tail_safe_lru{});
}

TEST_CASE("a longer turn makes earlier entries needed") {
    auto state = kv::eviction::tail_safe_lru{.budget = 5, .next_turn = 3}.open({.slots = 8});
    const auto turn = [&](std::uint32_t from, std::uint32_t to) {
        for (std::uint32_t i = from; i < to; ++i)
            state.admit(kv::slot_id{i}, {.key = i,
                                         .bytes = 1,
                                         .parent = i == 0 ? std::nullopt : std::optional(kv::slot_id{i - 1}),
                                         .depth = i,
                                         .length = to});
    };
    turn(0, 4);
    CHECK_FALSE(state.is_safe(kv::slot_id{1}));
    CHECK(state.is_safe(kv::slot_id{2}));
    CHECK(state.is_safe(kv::slot_id{3}));
    turn(4, 7);
    for (std::uint32_t i = 0; i < 7; ++i)
        CHECK(state.is_safe(kv::slot_id{i}) == (i >= 5));
}
