// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Which rows of a lease were written, in each layer: a bit each. Threads may mark different rows at once.
class written_rows {
public:
    /// Begins with `rows` rows, none of them written. Throws: bad_alloc; nothing has changed then.
    void begin(std::size_t rows, std::size_t layers) {
        const std::size_t needed = (rows + 63) / 64 * layers;
        if (bits_.size() < needed)
            bits_.resize(needed);
        layers_ = layers;
        used_ = needed;
        set(0);
    }
    /// All rows are written.
    void fill() noexcept { set(all); }
    void mark(std::size_t layer, std::size_t row) noexcept {
        std::atomic_ref(bits_[row / 64 * layers_ + layer])
            .fetch_or(std::uint64_t{1} << row % 64, std::memory_order_relaxed);
    }

    /// Whether the first `rows` rows are written in every layer. Cost: O(rows * layers / 64).
    [[nodiscard]] bool first(std::size_t rows) const noexcept {
        const std::uint64_t* word = bits_.data();
        for (std::size_t left = rows; left > 0; left -= left < 64 ? left : 64) {
            const std::uint64_t wanted = left < 64 ? (std::uint64_t{1} << left) - 1 : all;
            std::uint64_t written = wanted;
            for (const std::uint64_t* const end = word + layers_; word != end; ++word)
                written &= *word;
            if (written != wanted)
                return false;
        }
        return true;
    }

private:
    static constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();

    void set(std::uint64_t word) noexcept {
        for (std::size_t i = 0; i < used_; ++i)
            bits_[i] = word;
    }

    std::vector<std::uint64_t> bits_; // (blocks of 64 rows, layers), and room for more
    std::size_t layers_ = 0;
    std::size_t used_ = 0;
};

}} // namespace kvcache
