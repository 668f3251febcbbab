// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include <sys/mman.h>

namespace kvcache {

/// The larger page that most 64-bit systems offer: one entry of the address cache in place of 512.
inline constexpr std::size_t huge_page_bytes = std::size_t{1} << 21;

/// Asks the system to put the whole huge pages inside [at, at + bytes) on huge pages, at once for memory that nobody
/// touched yet and by and by for the rest. Returns whether the system takes such wishes; where it does not, nothing
/// happens. What came of it says bytes_on_huge_pages().
inline bool want_huge_pages([[maybe_unused]] void* at, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
    const auto from = reinterpret_cast<std::uintptr_t>(at);
    const std::uintptr_t first = (from + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    const std::uintptr_t last = (from + bytes) / huge_page_bytes * huge_page_bytes;
    return first < last && ::madvise(static_cast<std::byte*>(at) + (first - from), last - first, MADV_HUGEPAGE) == 0;
#else
    return false;
#endif
}

namespace detail {

/// The number behind the last blank-separated name of a line of /proc/self/smaps: "AnonHugePages:   2048 kB".
[[nodiscard]] inline std::size_t smaps_kilobytes(std::string_view line) {
    const std::size_t digit = line.find_first_of("0123456789");
    std::size_t number = 0;
    if (digit != line.npos)
        std::from_chars(line.data() + digit, line.data() + line.size(), number);
    return number;
}

} // namespace detail

/// How many of these bytes the system keeps on huge pages now, as far as it tells: by whole mappings, of which it says
/// only how much of each is huge. Zero where there is no /proc. Cost: reads the list of all mappings, milliseconds.
[[nodiscard]] inline std::size_t bytes_on_huge_pages(std::span<const std::byte> bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
    std::ifstream mappings("/proc/self/smaps");
    std::size_t huge = 0, inside = 0; // of the mapping at hand: how much of `bytes` lies in it
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

} // namespace kvcache
