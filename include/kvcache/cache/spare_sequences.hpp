// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// States of sequences that have ended, whose memory new sequences use. Together they keep no more page-table entries
/// than the cache has pages.
class spare_sequences {
public:
    explicit spare_sequences(std::size_t pages) : most_(pages) {}

    /// The state of a sequence without tokens and pages. `live`: the sequences that may be kept later. Throws:
    /// bad_alloc.
    [[nodiscard]] std::unique_ptr<sequence_state> take(std::size_t live) {
        if (const std::size_t all = spare_.size() + live + 1; spare_.capacity() < all)
            spare_.reserve(2 * all);
        if (spare_.empty())
            return std::make_unique<sequence_state>();
        auto made = std::move(spare_.back());
        spare_.pop_back();
        entries_ -= made->table.capacity();
        return made;
    }

    /// Keeps or frees a state. Requires: it was taken here.
    void keep(std::unique_ptr<sequence_state> state) noexcept {
        state->clear();
        if (entries_ + state->table.capacity() <= most_) {
            entries_ += state->table.capacity();
            spare_.push_back(std::move(state));
        }
    }

private:
    std::size_t most_;
    std::size_t entries_ = 0;
    std::vector<std::unique_ptr<sequence_state>> spare_;
};

}} // namespace kvcache
