// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/mix64.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Approximate recent use counts of keys, at most 16. The first use of a key sets bits of the doorkeeper, a Bloom
/// filter; later uses count in a count-min sketch of four rows of 4-bit counters. After ten uses a slot all counts are
/// halved and the doorkeeper is cleared.
///
/// Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions on Storage
/// 2017.
///
/// Cost: O(1) each, amortized. At most 8 + 2 bytes a slot, and at least 40 in total.
class frequency_sketch {
public:
    explicit frequency_sketch(std::size_t slots)
        : words_(std::max<std::size_t>(std::bit_ceil(slots) / 2, 4)),
          door_(std::max<std::size_t>(std::bit_ceil(slots) / 8, 1)),
          period_(std::max<std::size_t>(10 * slots, 40)) {}

    /// Records a use of the key.
    void add(std::uint64_t key) noexcept {
        const std::uint64_t hash = mix64(key);
        if (!pass_door(hash))
            for (std::uint32_t row = 0; row < 4; ++row)
                if (const place at = counter(hash, row); (words_[at.word] >> at.bit & 15) < 15)
                    words_[at.word] += std::uint64_t{1} << at.bit;
        if (++uses_ == period_)
            age();
    }

    /// The estimated uses of a key: at least the number since the last halving, capped at 16.
    [[nodiscard]] std::uint32_t uses(std::uint64_t key) const noexcept {
        const std::uint64_t hash = mix64(key);
        std::uint32_t least = 15;
        for (std::uint32_t row = 0; row < 4; ++row) {
            const place at = counter(hash, row);
            least = std::min(least, static_cast<std::uint32_t>(words_[at.word] >> at.bit & 15));
        }
        return least + (behind_door(hash) ? 1 : 0);
    }

private:
    struct place {
        std::size_t word;
        std::uint32_t bit;
    };

    // Each word holds four counters of each row. A row's hash is the high half of a product with the row's own odd
    // number.
    [[nodiscard]] place counter(std::uint64_t hash, std::uint32_t row) const noexcept {
        const std::uint64_t own = (hash | 1) * (0x9e3779b97f4a7c15ull + 2 * row * 0xd1b54a32d192ed03ull);
        return {own >> 34 & (words_.size() - 1), 16 * row + 4 * static_cast<std::uint32_t>(own >> 32 & 3)};
    }

    [[nodiscard]] std::size_t door_bits() const noexcept { return 64 * door_.size(); }
    [[nodiscard]] bool behind_door(std::uint64_t hash) const noexcept {
        const std::size_t a = hash & (door_bits() - 1), b = hash >> 32 & (door_bits() - 1);
        return (door_[a / 64] >> a % 64 & 1) != 0 && (door_[b / 64] >> b % 64 & 1) != 0;
    }
    // Sets the key's bits. Returns whether this is the key's first use, as far as the Bloom filter can tell.
    [[nodiscard]] bool pass_door(std::uint64_t hash) noexcept {
        if (behind_door(hash))
            return false;
        const std::size_t a = hash & (door_bits() - 1), b = hash >> 32 & (door_bits() - 1);
        door_[a / 64] |= std::uint64_t{1} << a % 64;
        door_[b / 64] |= std::uint64_t{1} << b % 64;
        return true;
    }

    void age() noexcept {
        for (std::uint64_t& word : words_)
            word = word >> 1 & 0x7777777777777777ull;
        std::ranges::fill(door_, 0);
        uses_ = 0;
    }

    std::vector<std::uint64_t> words_; // 16 counters each
    std::vector<std::uint64_t> door_;
    std::size_t period_;
    std::size_t uses_ = 0;
};

}}} // namespace kvcache::eviction
