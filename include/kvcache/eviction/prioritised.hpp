// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/lru.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The priorities of entries by their depth: `first` and `count` of them have `level`, and what no range names has 0.
struct depth_ranges {
    struct range {
        std::uint32_t first = 0;
        std::uint32_t count = 0;
        std::uint32_t level = 0;
    };
    std::array<range, 4> ranges = {}; ///< The first that fits counts.

    [[nodiscard]] constexpr std::uint32_t operator()(const entry& newcomer) const noexcept {
        for (const range& one : ranges)
            if (newcomer.depth >= one.first && newcomer.depth - one.first < one.count)
                return one.level;
        return 0;
    }
};

/// Says how dear an entry is: a level from 0 up.
template <class R>
concept priority_rule = requires(const R rule, const entry& newcomer) {
    { rule(newcomer) } -> std::convertible_to<std::uint32_t>;
};

/// Entries of low priority leave before those of higher. Each level is a policy of its own over its entries, and the
/// lowest that has one that may leave names the victim. Priorities come from a rule: by depth in the chain, so that the
/// first pages of each prompt stay, or by anything an entry says.
///
///     rule(entry) -> [ level 1: Inner ]
///                    [ level 0: Inner ] -> victim
///
///     prioritised<s3_fifo>{.rule = {{{{.first = 0, .count = 64, .level = 1}}}}}
template <eviction_policy Inner = lru, priority_rule Rule = depth_ranges>
struct prioritised {
    using role = eviction_role;
    Inner inner = {};
    Rule rule = {};
    std::uint32_t levels = 2; ///< 1 to 255; what a rule says beyond counts as the highest.
    class state;
    [[nodiscard]] state open(eviction_room room) const { return state{*this, room}; }
};

/// Cost: that of Inner, O(levels) for a victim. Inner's bytes a slot for each level, and one.
template <eviction_policy Inner, priority_rule Rule>
class prioritised<Inner, Rule>::state {
public:
    state(const prioritised& policy, eviction_room room) : rule_(policy.rule), levels_(room.slots) {
        expects(policy.levels >= 1 && policy.levels <= 255, "there are 1 to 255 levels of priority");
        inner_.reserve(policy.levels);
        for (std::uint32_t level = 0; level < policy.levels; ++level)
            inner_.push_back(policy.inner.open(room));
    }

    void announce(const entry& newcomer) { kvcache::announce(inner_[level_of(newcomer)], newcomer); }

    void admit(slot_id slot, const entry& newcomer) {
        const std::uint32_t level = level_of(newcomer);
        inner_[level].admit(slot, newcomer);
        levels_[index_of(slot)] = static_cast<std::uint8_t>(level);
    }

    void touch(slot_id slot) { at(slot).touch(slot); }
    void settle(slot_id slot) { kvcache::settle(at(slot), slot); }
    void cover(slot_id slot) { kvcache::cover(at(slot), slot); }
    void uncover(slot_id slot) { kvcache::uncover(at(slot), slot); }
    void erase(slot_id slot) { at(slot).erase(slot); }
    void evict(slot_id slot) { kvcache::evict(at(slot), slot); }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        for (auto& level : inner_)
            if (const std::optional<slot_id> found = level.victim(may_leave))
                return found;
        return std::nullopt;
    }

private:
    using inner_state = decltype(std::declval<const Inner&>().open(eviction_room{}));

    [[nodiscard]] std::uint32_t level_of(const entry& newcomer) const {
        return std::min(static_cast<std::uint32_t>(rule_(newcomer)), static_cast<std::uint32_t>(inner_.size() - 1));
    }
    [[nodiscard]] inner_state& at(slot_id slot) { return inner_[levels_[index_of(slot)]]; }

    Rule rule_;
    std::vector<inner_state> inner_; // by level
    std::vector<std::uint8_t> levels_;
};

static_assert(eviction_policy<prioritised<lru>>);

} // namespace kvcache
