// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

/// Tests the required properties of a storage. A storage may refuse any page.
template <storage_policy Policy>
[[nodiscard]] violations storage_conformance(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    for (const std::size_t page_bytes : {64u, 100u, 4096u, 20480u}) {
        constexpr std::uint32_t pages = 9;
        auto born = policy.open(pages, page_bytes);
        std::vector<std::byte> mark(pages);
        std::vector<bool> usable(pages, false);
        const auto whole = [&](const auto& state, std::uint32_t i) {
            return std::ranges::all_of(state.bytes(page_id{i}), [&](std::byte b) { return b == mark[i]; });
        };
        const auto fill = [&](const auto& state, std::uint32_t i) {
            mark[i] = static_cast<std::byte>(choose.bits());
            std::ranges::fill(state.bytes(page_id{i}), mark[i]);
        };
        const auto all_whole = [&](const auto& state) {
            for (std::uint32_t i = 0; i < pages; ++i)
                if (usable[i] && !whole(state, i))
                    return false;
            return true;
        };
        for (std::uint32_t i = 0; i < pages; ++i)
            if (usable[i] = born.acquire(page_id{i}); usable[i]) {
                const std::span<std::byte> bytes = born.bytes(page_id{i});
                detail::check_property(broken, bytes.data() != nullptr && bytes.size() == page_bytes,
                                       "an acquired page has its bytes");
                detail::check_property(broken, reinterpret_cast<std::uintptr_t>(bytes.data()) % line_bytes == 0,
                                       "a page begins on a cache line");
                if (bytes.data() == nullptr || bytes.size() != page_bytes)
                    return broken;
                fill(born, i);
            }
        detail::check_property(broken, all_whole(born), "pages do not overlap");

        auto moved = std::move(born);
        detail::check_property(broken, all_whole(moved), "bytes stay when the storage moves");
        for (std::size_t rounds = 200; rounds > 0; --rounds) {
            const auto i = static_cast<std::uint32_t>(choose.below(pages));
            if (usable[i])
                moved.release(page_id{i});
            usable[i] = !usable[i] && moved.acquire(page_id{i});
            if (usable[i])
                fill(moved, i);
            detail::check_property(broken, all_whole(moved), "bytes stay while other pages come and go");
        }
    }
    return broken;
}

}}} // namespace kvcache::testing
