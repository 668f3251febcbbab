// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// Page numbers by hash, in one open-addressed table with linear probing, at most half full. Equal hashes only make
/// candidates: the caller compares. Nothing is allocated after construction.
class hash_slots {
public:
    explicit hash_slots(std::size_t pages) : slots_(std::bit_ceil(2 * pages + 2)) {}

    /// The first page under this hash for which `is_it(page)` is true; `none` if there is none.
    template <class IsIt>
    [[nodiscard]] std::uint32_t find(std::uint64_t hash, IsIt&& is_it) const {
        const std::uint32_t tag = tag_of(hash);
        for (std::size_t at = home(tag); slots_[at].page != none; at = next(at))
            if (slots_[at].tag == tag && is_it(slots_[at].page))
                return slots_[at].page;
        return none;
    }

    /// Requires: the table holds fewer pages than it was made for.
    void insert(std::uint64_t hash, std::uint32_t page) {
        std::size_t at = home(tag_of(hash));
        while (slots_[at].page != none)
            at = next(at);
        slots_[at] = {tag_of(hash), page};
    }

    /// Requires: the page is in the table under this hash.
    void erase(std::uint64_t hash, std::uint32_t page) {
        std::size_t hole = home(tag_of(hash));
        while (slots_[hole].page != page)
            hole = next(hole);
        // Following slots move up, unless that would put one before its home slot.
        for (std::size_t at = next(hole); slots_[at].page != none; at = next(at))
            if (((at - home(slots_[at].tag)) & mask()) >= ((at - hole) & mask())) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        slots_[hole] = {};
    }

    static constexpr std::uint32_t none = 0xffffffffu;

private:
    struct slot {
        std::uint32_t tag = 0;
        std::uint32_t page = none;
    };

    [[nodiscard]] static std::uint32_t tag_of(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash); }
    [[nodiscard]] std::size_t mask() const noexcept { return slots_.size() - 1; }
    [[nodiscard]] std::size_t home(std::uint32_t tag) const noexcept { return tag & mask(); }
    [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return (at + 1) & mask(); }

    std::vector<slot> slots_;
};

}}} // namespace kvcache::index
