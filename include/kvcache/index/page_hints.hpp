// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/prefetch.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A lossy table from hashes to pages. A hash maps to one cache line of eight entries; a page that finds them all taken
/// is not stored, and of two pages under one hash `find` may return either. The caller therefore compares and has a
/// fallback. Nothing is allocated after construction. 16 bytes a page.
class page_hints {
public:
    static constexpr std::uint32_t none = 0xffffffffu;

    explicit page_hints(std::size_t pages) : lines_(2 * pages / places + 1) {}

    /// A page stored under this hash or under one with the same tag; `none` if there is none.
    [[nodiscard]] std::uint32_t find(std::uint64_t hash) const noexcept {
        const line& at = lines_[home(hash)];
        std::uint32_t found = none; // branch-free: the position is unpredictable
        for (std::size_t i = 0; i < places; ++i)
            found = std::min(found, at.tags[i] == tag(hash) ? at.pages[i] : none);
        return found;
    }

    /// Prefetches the line that `find` will read.
    void expect(std::uint64_t hash) const noexcept { prefetch(lines_.data(), home(hash)); }

    /// Stores a page if there is a free entry. Requires: page != none.
    void insert(std::uint64_t hash, std::uint32_t page) noexcept { replace(hash, none, tag(hash), page); }

    /// Removes a page that may have been stored under this hash.
    void erase(std::uint64_t hash, std::uint32_t page) noexcept { replace(hash, page, 0, none); }

private:
    static constexpr std::size_t places = 8;

    struct alignas(line_bytes) line {
        line() { pages.fill(none); }
        std::array<std::uint32_t, places> tags = {};
        std::array<std::uint32_t, places> pages;
    };

    [[nodiscard]] static std::uint32_t tag(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash); }
    [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept { return (hash >> 32) * lines_.size() >> 32; }

    void replace(std::uint64_t hash, std::uint32_t old, std::uint32_t new_tag, std::uint32_t page) noexcept {
        line& at = lines_[home(hash)];
        const auto place =
            static_cast<std::size_t>(std::find(at.pages.begin(), at.pages.end(), old) - at.pages.begin());
        if (place < places) {
            at.tags[place] = new_tag;
            at.pages[place] = page;
        }
    }

    aligned_vector<line> lines_;
};

}}} // namespace kvcache::index
