// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/lirs.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

// The paper's stack, pruned from the bottom, with a list of the entries in it that were evicted.
struct plain_lirs {
    struct item {
        std::uint64_t key;
        std::size_t bytes;
        std::optional<kv::slot_id> slot; // nullopt: evicted
        bool kept;
    };
    std::size_t room, passing_share, most_ghosts;
    std::list<item> stack = {}; // newest first
    queue passing = {};
    std::list<std::uint64_t> left = {}; // newest first
    std::map<kv::slot_id, kv::eviction_entry> entries = {};
    std::optional<std::uint64_t> missed = {};
    bool returns = false;

    [[nodiscard]] auto on_stack(kv::slot_id slot) {
        return kvcache::ranges::find_if(stack, [&](const item& one) { return one.slot == slot; });
    }
    [[nodiscard]] std::size_t kept_bytes() const {
        std::size_t sum = 0;
        for (const item& one : stack)
            sum += one.kept ? one.bytes : 0;
        return sum;
    }
    void prune() {
        if (kvcache::ranges::none_of(stack, &item::kept))
            return;
        for (; !stack.back().kept; stack.pop_back())
            if (!stack.back().slot)
                left.remove(stack.back().key);
    }
    void limit() {
        for (;;) {
            std::size_t bytes = 0;
            for (const item& one : stack)
                bytes += one.bytes;
            if ((bytes <= 2 * room && left.size() <= most_ghosts) || left.empty())
                return;
            stack.remove_if([&](const item& one) { return !one.slot && one.key == left.back(); });
            left.pop_back();
        }
    }
    void make_room(std::size_t bytes) {
        while (kept_bytes() > 0 && kept_bytes() + bytes > room - passing_share) {
            const auto idle = std::find_if(stack.rbegin(), stack.rend(), [](const item& one) { return one.kept; });
            passing.push_front(*idle->slot);
            stack.erase(std::next(idle).base());
        }
        prune();
    }
    void on_miss(const kv::eviction_entry& newcomer) {
        missed = newcomer.key;
        returns = kvcache::ranges::find(left, newcomer.key) != left.end();
        left.remove(newcomer.key);
        stack.remove_if([&](const item& one) { return !one.slot && one.key == newcomer.key; });
        if (returns)
            make_room(newcomer.bytes);
    }
    void push(kv::slot_id slot, bool kept) { stack.push_front({entries[slot].key, entries[slot].bytes, slot, kept}); }
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        if (missed != newcomer.key)
            on_miss(newcomer);
        entries[slot] = newcomer;
        const bool kept = returns || kept_bytes() + newcomer.bytes <= room - passing_share;
        push(slot, kept);
        if (!kept)
            passing.push_front(slot);
        missed.reset();
        returns = false;
        prune();
        limit();
    }
    void touch(kv::slot_id slot) {
        const auto at = on_stack(slot);
        if (at == stack.end()) {
            to_front(passing, slot);
            push(slot, false);
        } else if (at->kept) {
            stack.splice(stack.begin(), stack, at);
            prune();
        } else {
            passing.remove(slot);
            stack.erase(at);
            make_room(entries[slot].bytes);
            push(slot, true);
            prune();
        }
        limit();
    }
    void in_use(kv::slot_id slot) {
        if (const auto at = on_stack(slot); at != stack.end())
            stack.splice(stack.begin(), stack, at);
        if (in(passing, slot))
            to_front(passing, slot);
        prune();
    }
    void on_released(kv::slot_id slot) { in_use(slot); }
    void erase(kv::slot_id slot) {
        if (const auto at = on_stack(slot); at != stack.end())
            stack.erase(at);
        passing.remove(slot);
        prune();
    }
    void evict(kv::slot_id slot) {
        const auto at = on_stack(slot);
        if (at == stack.end() || at->kept) {
            erase(slot);
        } else {
            at->slot.reset();
            left.push_front(at->key);
            passing.remove(slot);
            limit();
            prune();
        }
        limit();
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        for (std::size_t left_to_ask = passing.size(); left_to_ask > 0; --left_to_ask) {
            if (is_evictable(passing.back()))
                return passing.back();
            in_use(passing.back());
        }
        for (std::size_t kept = static_cast<std::size_t>(kvcache::ranges::count_if(stack, &item::kept)); kept > 0;
             --kept) {
            const kv::slot_id idle = *stack.back().slot;
            if (is_evictable(idle))
                return idle;
            in_use(idle);
        }
        return std::nullopt;
    }
};

} // namespace

TEST_CASE("lirs is a stack that is pruned from below") {
    for (const double fraction : {0.01, 0.3, 0.6})
        same_victims(kv::eviction::lirs{.passing_fraction = fraction}, [&](kv::eviction_capacity capacity) {
            return plain_lirs{
                capacity.bytes,
                std::max<std::size_t>(1, static_cast<std::size_t>(fraction * static_cast<double>(capacity.bytes))),
                capacity.slots + 1};
        });
    says_what_a_caller_does_wrong(kv::eviction::lirs{});
}
