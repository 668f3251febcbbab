// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstdint>
#include <set>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Who waits for something that one at a time may have, in order of arrival. Not thread-safe.
class waiting_line {
public:
    /// Joins the line, and returns the ticket.
    [[nodiscard]] std::uint64_t join() noexcept { return next_++; }
    [[nodiscard]] bool is_first(std::uint64_t ticket) const noexcept { return ticket == serving_; }
    /// Whether anyone has it or waits for it.
    [[nodiscard]] bool busy() const noexcept { return next_ != serving_; }

    /// The first one has finished.
    void advance() {
        ++serving_;
        while (given_up_.erase(serving_) > 0)
            ++serving_;
    }
    /// One that is not first leaves the line. Throws: bad_alloc.
    void give_up(std::uint64_t ticket) { given_up_.insert(ticket); }

private:
    std::uint64_t next_ = 0;    // the next ticket to hand out
    std::uint64_t serving_ = 0; // the ticket of the first one
    std::set<std::uint64_t> given_up_;
};

}} // namespace kvcache
