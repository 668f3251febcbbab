// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/eviction/slot_queues.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvcache::inline KVCACHE_ABI {

/// The two queues of s3_fifo for entries whose marks lie elsewhere: they arrive in one of them, a touch does not move
/// them, and `first` goes through them as that policy does.
///
///     [ small, a tenth ] -> used twice -> [ main ], another round for each use
///
/// Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
///
/// Cost: O(1) each; `first` amortised, while a fixed share of the entries may leave. 8 bytes a slot.
class arrival_queues {
public:
    /// What these queues know of an entry: bits of a byte, of which the others are its owner's.
    static constexpr std::uint8_t fresh = 1; ///< Nobody has let go of it yet.
    static constexpr std::uint8_t main = 2;  ///< It is in the main queue.
    static constexpr std::uint8_t one_use = 64, uses = 192;

    arrival_queues(std::size_t slots, std::size_t room)
        : queues_(slots, 2), main_room_(0.9 * static_cast<double>(room)) {}

    void arrive(slot_id slot, std::uint8_t marks, double bytes) {
        const std::uint32_t to = queue(marks);
        queues_.push_front(slot, to);
        bytes_[to] += bytes;
        ++count_[to];
    }

    void leave(slot_id slot, std::uint8_t marks, double bytes) {
        queues_.remove(slot);
        bytes_[queue(marks)] -= bytes;
        --count_[queue(marks)];
    }

    static void touch(std::uint8_t& marks) noexcept {
        if ((marks & uses) != uses)
            marks = static_cast<std::uint8_t>(marks + one_use);
    }

    /// The last holder lets go: a chain that has come queues tail first.
    void settle(slot_id slot, std::uint8_t& marks) {
        if ((marks & fresh) != 0)
            queues_.move_to_front(slot, queue(marks));
        marks = static_cast<std::uint8_t>(marks & ~fresh);
    }

    /// Who leaves first. `marks_of(slot)` is an entry's marks, to be changed, `bytes_of(slot)` its size.
    template <class MayLeave, class Marks, class Bytes>
    [[nodiscard]] std::optional<slot_id> first(MayLeave&& may_leave, Marks&& marks_of, Bytes&& bytes_of) {
        // A round asks or promotes all of the small queue, and four rounds ask all of the main one.
        std::size_t small_left = count_[0];
        std::size_t main_left = (count_[0] + count_[1]) * 4;
        while (small_left > 0 || main_left > 0) {
            const bool full = bytes_[1] > main_room_ || count_[0] == 0;
            if (count_[1] > 0 && main_left > 0 && (full || small_left == 0)) {
                --main_left;
                const slot_id oldest = queues_.back(1);
                std::uint8_t& marks = marks_of(oldest);
                if ((marks & uses) == 0 && may_leave(oldest))
                    return oldest;
                if ((marks & uses) != 0)
                    marks = static_cast<std::uint8_t>(marks - one_use);
                queues_.move_to_front(oldest, 1);
            } else if (count_[0] > 0 && small_left > 0) {
                --small_left;
                const slot_id oldest = queues_.back(0);
                std::uint8_t& marks = marks_of(oldest);
                if ((marks & uses) >= 2 * one_use) {
                    leave(oldest, marks, bytes_of(oldest));
                    marks = static_cast<std::uint8_t>((marks & ~(uses | fresh)) | main);
                    arrive(oldest, marks, bytes_of(oldest));
                } else if (may_leave(oldest)) {
                    return oldest;
                } else {
                    queues_.move_to_front(oldest, 0);
                }
            } else {
                break;
            }
        }
        return queues_.oldest(1, may_leave); // what went there after its rounds
    }

private:
    [[nodiscard]] static std::uint32_t queue(std::uint8_t marks) noexcept { return (marks & main) != 0 ? 1 : 0; }

    slot_queues queues_;
    double main_room_;
    double bytes_[2] = {};
    std::size_t count_[2] = {};
};

} // namespace kvcache
