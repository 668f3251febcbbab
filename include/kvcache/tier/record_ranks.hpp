// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest256.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/tier/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// A name is as good as its own hash.
struct name_hash {
    [[nodiscard]] std::size_t operator()(const digest256& name) const noexcept {
        return static_cast<std::size_t>(load_little<std::uint64_t>(name.bytes, 0));
    }
};

/// The records of a tier and what an eviction policy makes of them: which are there, how large, who leaves first. Not
/// for several threads. Records of one chain leave in any order: a chain that has a hole ends there.
template <eviction_policy Eviction>
class record_ranks {
public:
    /// At most `records` of them, of at most `bytes` together.
    record_ranks(Eviction eviction, std::size_t records, std::size_t bytes)
        : eviction_(eviction.open({.slots = records, .bytes = bytes})), most_bytes_(bytes), records_(records) {
        free_.reserve(records);
        for (std::size_t slot = records; slot > 0; --slot)
            free_.push_back(slot_id{static_cast<std::uint32_t>(slot - 1)});
    }

    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] bool contains(const digest256& name) const { return slots_.contains(name); }

    /// Whether there could ever be a record of this size.
    [[nodiscard]] bool fits(std::size_t bytes) const noexcept { return bytes <= most_bytes_ && !records_.empty(); }

    /// The record that is to leave before a newcomer comes; none if there is room.
    /// Requires: the newcomer fits, and is not here. Whoever is named must be evicted or erased.
    [[nodiscard]] std::optional<digest256> victim_for(const tier_entry& newcomer, std::size_t bytes) {
        if (!announced_) {
            announce(eviction_, entry_of(newcomer, bytes));
            announced_ = true;
        }
        if (!free_.empty() && bytes_ + bytes <= most_bytes_)
            return std::nullopt;
        const auto slot = eviction_.victim([](slot_id) { return true; });
        return slot ? std::optional(records_[index_of(*slot)].name) : std::nullopt;
    }

    /// Takes a newcomer in. Requires: victim_for() named nobody any more. Throws: bad_alloc, and it is not in.
    void admit(const tier_entry& newcomer, std::size_t bytes) {
        announced_ = false;
        const slot_id slot = free_.back();
        slots_.emplace(newcomer.name, slot);
        detail::scope_guard undo([&] { slots_.erase(newcomer.name); });
        eviction_.admit(slot, entry_of(newcomer, bytes));
        undo.dismiss();
        free_.pop_back();
        records_[index_of(slot)] = {newcomer.name, bytes};
        bytes_ += bytes;
    }

    void touch(const digest256& name) {
        if (const auto found = slots_.find(name); found != slots_.end())
            eviction_.touch(found->second);
    }

    /// A record leaves: as a victim, of whom a ghost may stay, or because it is gone.
    void leave(const digest256& name, bool as_victim) {
        const auto found = slots_.find(name);
        if (found == slots_.end())
            return;
        const slot_id slot = found->second;
        if (as_victim)
            evict(eviction_, slot);
        else
            eviction_.erase(slot);
        bytes_ -= records_[index_of(slot)].bytes;
        records_[index_of(slot)] = {};
        slots_.erase(found);
        free_.push_back(slot);
    }

    /// Calls visit(name) for every record, in no order.
    template <class Visit>
    void for_each(Visit visit) const {
        for (const auto& [name, slot] : slots_)
            visit(name);
    }

private:
    struct place {
        digest256 name = {};
        std::size_t bytes = 0;
    };

    [[nodiscard]] static entry entry_of(const tier_entry& record, std::size_t bytes) noexcept {
        return {.key = load_little<std::uint64_t>(record.name.bytes, 8),
                .bytes = bytes,
                .cost = record.cost,
                .depth = record.depth,
                .length = record.depth + 1};
    }

    opened_by<Eviction, eviction_room> eviction_;
    std::size_t most_bytes_;
    std::size_t bytes_ = 0;
    bool announced_ = false;     // the newcomer that room is being made for
    std::vector<place> records_; // by slot
    std::vector<slot_id> free_;
    std::unordered_map<digest256, slot_id, name_hash> slots_;
};

} // namespace kvcache
