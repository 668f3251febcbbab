// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/ghost_list.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvcache::inline KVCACHE_ABI {

/// Ghosts of entries that were used once and of those that were used again, remembered beyond what arc does, and the
/// share of the room that arc would give those used once: who returns as a ghost that arc would still have moves it.
///
/// Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.
///
/// Cost: O(1) each. 16 bytes a ghost.
class ghost_pair {
public:
    /// Who returns.
    struct returned {
        std::uint32_t mark = 0; ///< What its policy noted.
        bool again = false;     ///< It had been used again.
        bool recent = false;    ///< arc would have it still.
        std::size_t since = 0;  ///< About how many ghosts of its kind are newer.
    };

    /// `once` and `again` ghosts, and a room of so many bytes.
    ghost_pair(std::size_t once, std::size_t again, std::size_t room)
        : once_(once, 0, ghost_list::marks::instead_of_bytes),
          again_(again, 0, ghost_list::marks::instead_of_bytes),
          room_(static_cast<double>(room)) {}

    void push(std::uint64_t key, std::uint32_t mark, bool again) { (again ? again_ : once_).push(key, {.mark = mark}); }

    /// Takes a newcomer's ghost, of a cache with so many entries, so many of which were used once.
    std::optional<returned> take(const entry& newcomer, std::size_t present, std::size_t present_once) {
        // arc's lists: those used once, ghosts included, would fill the cache, and all of them two caches.
        const std::size_t of_once = std::min(once_.size(), present - present_once);
        const std::size_t of_again = std::min(again_.size(), present - of_once);
        const auto step = [&](std::size_t other, std::size_t own) {
            return static_cast<double>(newcomer.bytes) *
                   std::max(static_cast<double>(other) / static_cast<double>(std::max<std::size_t>(own, 1)), 1.0);
        };
        if (const auto ghost = once_.take(newcomer.key)) {
            const bool recent = ghost->since < of_once;
            if (recent)
                target_ = std::min(target_ + step(of_again, of_once), room_);
            return returned{ghost->mark, false, recent, ghost->since};
        }
        if (const auto ghost = again_.take(newcomer.key)) {
            const bool recent = ghost->since < of_again;
            if (recent)
                target_ = std::max(target_ - step(of_once, of_again), 0.0);
            return returned{ghost->mark, true, recent, ghost->since};
        }
        return std::nullopt;
    }

    /// The bytes that arc would give to entries that were used once.
    [[nodiscard]] double target() const noexcept { return target_; }

private:
    ghost_list once_, again_;
    double room_;
    double target_ = 0.0;
};

} // namespace kvcache
