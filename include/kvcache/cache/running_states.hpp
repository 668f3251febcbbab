// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/memory.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The states of a sequence after its last token, of all state groups one after the other, and memory for those after
/// the rows of its lease. Sequences that end at the same token share theirs; what is shared is not written any more.
class running_states {
public:
    /// The states after the last token; empty if they are not known.
    [[nodiscard]] std::span<const std::byte> last() const noexcept {
        return last_ ? std::span<const std::byte>(*last_) : std::span<const std::byte>();
    }
    /// Memory for the states after the rows of a lease. Its content is that of an earlier call for the same lease, or
    /// undefined. Allocates only the first times. Throws: bad_alloc.
    [[nodiscard]] std::span<std::byte> next(std::size_t bytes) {
        if (!next_ || next_->size() != bytes || next_.use_count() > 1)
            next_ = std::make_shared<aligned_vector<std::byte>>(bytes);
        written_ = true;
        return *next_;
    }

    /// The states are those of another sequence that ends at the same token.
    void share(const running_states& from) noexcept { last_ = from.last_; }
    /// `count` rows of a lease of `rows` were committed: all; or fewer, after which the states are not known; or none.
    void commit(std::size_t count, std::size_t rows) noexcept {
        if (count > 0 && count == rows && written_)
            std::swap(last_, next_);
        else if (count > 0)
            last_.reset();
        written_ = false;
    }
    /// A lease was rolled back.
    void rollback() noexcept { written_ = false; }
    /// The sequence has other tokens now.
    void forget() noexcept { last_.reset(), written_ = false; }
    /// The sequence has ended: all memory is freed, since a state may be larger than all pages of its sequence.
    void end() noexcept {
        forget();
        next_.reset();
    }

private:
    std::shared_ptr<aligned_vector<std::byte>> last_;
    std::shared_ptr<aligned_vector<std::byte>> next_; // of the lease, and memory of earlier states
    bool written_ = false;                            // the lease's states have memory
};

}} // namespace kvcache
