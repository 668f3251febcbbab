// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/memory.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// The size in a line of /proc/self/smaps: 2048 of "AnonHugePages:   2048 kB".
[[nodiscard]] inline std::size_t smaps_kilobytes(std::string_view line) {
    const std::size_t digit = line.find_first_of("0123456789");
    std::size_t number = 0;
    if (digit != line.npos)
        std::from_chars(line.data() + digit, line.data() + line.size(), number);
    return number;
}

} // namespace detail

/// The number of these bytes that are on huge pages now. An estimate: the system reports huge pages per mapping, not
/// per address. Zero where there is no /proc. Cost: reads the list of all mappings, milliseconds.
[[nodiscard]] inline std::size_t bytes_on_huge_pages(std::span<const std::byte> bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
    std::ifstream mappings("/proc/self/smaps");
    std::size_t huge = 0, inside = 0; // of the current mapping: bytes of `bytes` inside it
    for (std::string line; std::getline(mappings, line);) {
        std::uintptr_t from = 0, to = 0;
        const char* const end = line.data() + line.size();
        const auto [dash, wrong] = std::from_chars(line.data(), end, from, 16);
        if (wrong == std::errc() && dash != end && *dash == '-' &&
            std::from_chars(dash + 1, end, to, 16).ec == std::errc()) {
            const std::uintptr_t first = std::max(from, begin), last = std::min(to, begin + bytes.size());
            inside = first < last ? last - first : 0;
        } else if (line.starts_with("AnonHugePages:") || line.starts_with("FilePmdMapped:")) {
            const std::size_t more = std::min(inside, detail::smaps_kilobytes(line) * 1024);
            huge += more;
            inside -= more;
        }
    }
    return huge;
}

/// Reference-counted, uninitialized memory of `bytes`, aligned as alignment_for(bytes). A null `resource` means new and
/// delete. Throws: what the resource throws.
[[nodiscard]] inline std::shared_ptr<std::byte> shared_memory(std::size_t bytes, pmr::memory_resource* resource) {
    pmr::memory_resource* const from = resource != nullptr ? resource : pmr::new_delete_resource();
    const std::size_t alignment = alignment_for(bytes);
    auto* const at = static_cast<std::byte*>(from->allocate(bytes, alignment));
    if (alignment == huge_page_bytes)
        want_huge_pages(at, bytes);
    return {at, [=](std::byte* mine) { from->deallocate(mine, bytes, alignment); }};
}

}} // namespace kvcache
