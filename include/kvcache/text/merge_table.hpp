// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// The merge of two adjacent tokens: its rank and the resulting token.
struct merge {
    std::uint32_t rank = 0;
    std::int32_t made = 0;
};

/// A hash table from a pair of tokens to their merge: open addressing, with one probe for most pairs.
template <class...>
class basic_merge_table {
public:
    basic_merge_table() : basic_merge_table(0) {}
    /// An empty table for up to `count` merges.
    explicit basic_merge_table(std::size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

    /// Sets the merge of a pair, and replaces an earlier one. Requires: room for it.
    void set(std::int32_t left, std::int32_t right, merge m) {
        slot& s = slots_[place(key_of(left, right))];
        s = {key_of(left, right), m};
    }
    [[nodiscard]] const merge* find(std::int32_t left, std::int32_t right) const noexcept {
        const slot& s = slots_[place(key_of(left, right))];
        return s.key == empty ? nullptr : &s.value;
    }

private:
    static constexpr std::uint64_t empty = ~std::uint64_t{0}; // not a key: token ids are not negative
    struct slot {
        std::uint64_t key = empty;
        merge value = {};
    };

    [[nodiscard]] static std::uint64_t key_of(std::int32_t left, std::int32_t right) noexcept {
        return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
    }
    [[nodiscard]] std::size_t place(std::uint64_t key) const noexcept {
        std::uint64_t h = key * 0x9e3779b97f4a7c15u; // multiplication by the golden ratio spreads adjacent ids
        h ^= h >> 32;
        const std::size_t mask = slots_.size() - 1;
        std::size_t i = static_cast<std::size_t>(h) & mask;
        while (slots_[i].key != empty && slots_[i].key != key)
            i = (i + 1) & mask;
        return i;
    }

    std::vector<slot> slots_;
};
using merge_table = basic_merge_table<>;

}}} // namespace kvcache::text
