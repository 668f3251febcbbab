// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/lru.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Priorities by depth in the chain: `count` depths from `first` on have priority `level`; all others have 0.
struct depth_ranges {
    /// `count` depths from `first` on, and their priority.
    struct range {
        std::uint32_t first = 0;
        std::uint32_t count = 0;
        std::uint32_t level = 0;
    };
    std::array<range, 4> ranges = {}; ///< The first range that contains the depth applies.

    [[nodiscard]] constexpr std::uint32_t operator()(const eviction_entry& newcomer) const noexcept {
        for (const range& one : ranges)
            if (newcomer.depth >= one.first && newcomer.depth - one.first < one.count)
                return one.level;
        return 0;
    }
};

/// A rule that assigns an entry its priority: a level from 0 up.
template <class R>
concept priority_rule = requires(const R rule, const eviction_entry& newcomer) {
    { rule(newcomer) } -> std::convertible_to<std::uint32_t>;
};

/// Evicts entries of low priority before those of higher priority. Each level has its own instance of Inner; the lowest
/// level with an evictable entry selects the victim. Priorities come from a rule: the depth in the chain, so that the
/// first pages of each prompt stay, or any other attribute of an entry.
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
    std::uint32_t levels = 2; ///< 1 to 255; higher results of the rule count as the highest level.
    class state;
    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

/// Cost: that of Inner, O(levels) for a victim. Inner's bytes a slot for each level, plus one.
template <eviction_policy Inner, priority_rule Rule>
class prioritised<Inner, Rule>::state {
public:
    state(const prioritised& policy, eviction_capacity capacity) : rule_(policy.rule), levels_(capacity.slots) {
        require(policy.levels >= 1 && policy.levels <= 255, "there are 1 to 255 levels of priority");
        inner_.reserve(policy.levels);
        for (std::uint32_t level = 0; level < policy.levels; ++level)
            inner_.push_back(policy.inner.open(capacity));
    }

    void on_miss(const eviction_entry& newcomer) { kvcache::on_miss(inner_[level_of(newcomer)], newcomer); }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        const std::uint32_t level = level_of(newcomer);
        inner_[level].admit(slot, newcomer);
        levels_[index_of(slot)] = static_cast<std::uint8_t>(level);
    }

    void touch(slot_id slot) { at(slot).touch(slot); }
    void on_released(slot_id slot) { kvcache::on_released(at(slot), slot); }
    void on_child_added(slot_id slot) { kvcache::on_child_added(at(slot), slot); }
    void on_last_child_removed(slot_id slot) { kvcache::on_last_child_removed(at(slot), slot); }
    void erase(slot_id slot) { at(slot).erase(slot); }
    void evict(slot_id slot) { kvcache::evict(at(slot), slot); }

    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        for (auto& level : inner_)
            if (const std::optional<slot_id> found = level.victim(is_evictable))
                return found;
        return std::nullopt;
    }

private:
    using inner_state = opened_by<Inner, eviction_capacity>;

    [[nodiscard]] std::uint32_t level_of(const eviction_entry& newcomer) const {
        return std::min(static_cast<std::uint32_t>(rule_(newcomer)), static_cast<std::uint32_t>(inner_.size() - 1));
    }
    [[nodiscard]] inner_state& at(slot_id slot) { return inner_[levels_[index_of(slot)]]; }

    Rule rule_;
    std::vector<inner_state> inner_; // by level
    std::vector<std::uint8_t> levels_;
};

static_assert(eviction_policy<prioritised<lru>>);

}}} // namespace kvcache::eviction
