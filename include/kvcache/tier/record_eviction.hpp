// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/tier/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Hash of a record name: its first 8 bytes, since the name is a hash already.
struct name_hash {
    [[nodiscard]] std::size_t operator()(const sha256_digest& name) const noexcept {
        return static_cast<std::size_t>(load_little<std::uint64_t>(name.bytes, 0));
    }
};

/// Returns the bytes of a record in pieces.
[[nodiscard]] inline std::size_t total_bytes(std::span<const std::span<const std::byte>> pieces) noexcept {
    std::size_t size = 0;
    for (const auto piece : pieces)
        size += piece.size();
    return size;
}

/// Copies a record in pieces into one. Throws: bad_alloc.
[[nodiscard]] inline std::vector<std::byte> joined(std::span<const std::span<const std::byte>> pieces) {
    std::vector<std::byte> whole;
    whole.reserve(total_bytes(pieces));
    for (const auto piece : pieces)
        whole.insert(whole.end(), piece.begin(), piece.end());
    return whole;
}

/// The adapter from the records of a tier to an eviction policy: the records present, their sizes, and the next
/// victim. Not thread-safe. Records of one chain are evicted in any order; a chain with a missing record ends there.
template <eviction_policy Eviction>
class record_eviction {
public:
    /// At most `records` records of at most `bytes` in total.
    record_eviction(Eviction eviction, std::size_t records, std::size_t bytes)
        : eviction_(open_checked(eviction, {.slots = records, .bytes = bytes})), most_bytes_(bytes), records_(records) {
        free_.reserve(records);
        for (std::size_t slot = records; slot > 0; --slot)
            free_.push_back(slot_id{static_cast<std::uint32_t>(slot - 1)});
    }

    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] bool contains(const sha256_digest& name) const { return slots_.contains(name); }

    /// Returns whether a record of this size can ever fit.
    [[nodiscard]] bool fits(std::size_t bytes) const noexcept { return bytes <= most_bytes_ && !records_.empty(); }

    /// Returns the record to evict before a newcomer is admitted; none if there is room. Requires: the newcomer fits
    /// and is not present. The caller must evict or erase the returned record.
    [[nodiscard]] std::optional<sha256_digest> victim_for(const tier_entry& newcomer, std::size_t bytes) {
        if (!missed_) {
            on_miss(eviction_, entry_of(newcomer, bytes));
            missed_ = true;
        }
        if (!free_.empty() && bytes_ + bytes <= most_bytes_)
            return std::nullopt;
        const auto is_record = [&](slot_id at) {
            return index_of(at) < records_.size() && contains(records_[index_of(at)].name);
        };
        const auto slot = eviction_.victim([](slot_id) { return true; });
        if (!slot)
            return std::nullopt;
        require(is_record(*slot), "an eviction policy's victim is evictable");
        return records_[index_of(*slot)].name;
    }

    /// Admits a newcomer. Requires: victim_for() returned none. Throws: bad_alloc; the newcomer is not admitted then.
    void admit(const tier_entry& newcomer, std::size_t bytes) {
        missed_ = false;
        const slot_id slot = free_.back();
        slots_.emplace(newcomer.name, slot);
        kvcache::detail::scope_guard undo([&] { slots_.erase(newcomer.name); });
        eviction_.admit(slot, entry_of(newcomer, bytes));
        undo.dismiss();
        free_.pop_back();
        records_[index_of(slot)] = {newcomer.name, bytes};
        bytes_ += bytes;
    }

    void touch(const sha256_digest& name) {
        if (const auto found = slots_.find(name); found != slots_.end())
            eviction_.touch(found->second);
    }

    /// Removes a record, either as a victim, which may keep a ghost, or because it is gone.
    void remove(const sha256_digest& name, bool as_victim) {
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

    /// Calls visit(name) for every record, in unspecified order.
    template <class Visit>
    void for_each(Visit visit) const {
        for (const auto& [name, slot] : slots_)
            visit(name);
    }

private:
    struct place {
        sha256_digest name = {};
        std::size_t bytes = 0;
    };

    [[nodiscard]] static eviction_entry entry_of(const tier_entry& record, std::size_t bytes) noexcept {
        return {.key = load_little<std::uint64_t>(record.name.bytes, 8),
                .bytes = bytes,
                .cost = record.cost,
                .depth = record.depth,
                .length = record.depth + 1};
    }

    checked_eviction<opened_by<Eviction, eviction_capacity>> eviction_;
    std::size_t most_bytes_;
    std::size_t bytes_ = 0;
    bool missed_ = false;        // on_miss was called for the pending newcomer
    std::vector<place> records_; // indexed by slot
    std::vector<slot_id> free_;
    std::unordered_map<sha256_digest, slot_id, name_hash> slots_;
};

}}} // namespace kvcache::tier
