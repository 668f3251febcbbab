// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Which rows of a lease were written, in each layer: a bit each. Threads may mark different rows at once.
class written_rows {
public:
    /// Begins with `rows` rows, none of them written. Throws: bad_alloc; nothing has changed then.
    void begin(std::size_t rows, std::size_t layers) {
        bits_.assign((rows + 63) / 64 * layers, 0);
        layers_ = layers;
    }
    /// All rows are written.
    void fill() noexcept { std::fill(bits_.begin(), bits_.end(), std::numeric_limits<std::uint64_t>::max()); }
    void mark(std::size_t layer, std::size_t row) noexcept {
        std::atomic_ref(bits_[row / 64 * layers_ + layer])
            .fetch_or(std::uint64_t{1} << row % 64, std::memory_order_relaxed);
    }

    /// Whether the first `rows` rows are written in every layer. Cost: O(rows * layers / 64).
    [[nodiscard]] bool first(std::size_t rows) const noexcept {
        for (std::size_t block = 0; block * 64 < rows; ++block) {
            const std::size_t left = rows - block * 64;
            const std::uint64_t wanted =
                left < 64 ? (std::uint64_t{1} << left) - 1 : std::numeric_limits<std::uint64_t>::max();
            const std::uint64_t* const words = bits_.data() + block * layers_;
            if (!std::all_of(words, words + layers_, [wanted](std::uint64_t one) { return (one & wanted) == wanted; }))
                return false;
        }
        return true;
    }

private:
    std::vector<std::uint64_t> bits_; // (blocks of 64 rows, layers)
    std::size_t layers_ = 0;
};

} // namespace kvcache
