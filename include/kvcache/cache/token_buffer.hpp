// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tokens of a sequence. Capacity is reserved before tokens are appended, so that appending cannot fail. A span of
/// the tokens stays readable until the `reserve` after an append, even where the tokens have moved.
class token_buffer {
public:
    [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }
    [[nodiscard]] const token_id* data() const noexcept { return tokens_.data(); }
    [[nodiscard]] const token_id* begin() const noexcept { return tokens_.data(); }
    [[nodiscard]] const token_id* end() const noexcept { return tokens_.data() + tokens_.size(); }

    /// Replaces the tokens. Throws: bad_alloc.
    void assign(std::span<const token_id> tokens) { tokens_.assign(tokens.data(), tokens.data() + tokens.size()); }

    /// Keeps the first `count` tokens. Requires: count <= size().
    void truncate(std::size_t count) noexcept { tokens_.resize(count); }

    /// Makes room for `more` tokens. Throws: bad_alloc; nothing has changed then.
    void reserve(std::size_t more) {
        const std::size_t needed = tokens_.size() + more;
        const bool grows = needed > tokens_.capacity();
        if (grows && spare_.capacity() >= needed)
            return;
        spare_ = std::vector<token_id>();
        if (grows)
            spare_.reserve(std::max(needed, 2 * tokens_.capacity()));
    }

    /// Appends tokens for which there is room. They may be this buffer's own, or those of another buffer that moved
    /// them after its own `reserve`.
    void append(std::span<const token_id> more) noexcept {
        const std::size_t old = tokens_.size(), needed = old + more.size();
        if (needed > tokens_.capacity()) {
            spare_.assign(tokens_.data(), tokens_.data() + old);
            spare_.swap(tokens_);
        }
        tokens_.resize(needed);
        std::copy(more.begin(), more.end(), tokens_.data() + old);
    }

private:
    std::vector<token_id> tokens_;
    std::vector<token_id> spare_; // where the tokens move as they grow; then where they were, until the next reserve
};

}} // namespace kvcache
