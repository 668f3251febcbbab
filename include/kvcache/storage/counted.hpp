// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// Counters of a storage's calls.
struct storage_counts {
    std::uint64_t acquired = 0; ///< Pages acquired.
    std::uint64_t refused = 0;  ///< Pages refused.
    std::uint64_t released = 0; ///< Pages released.
    std::uint64_t most = 0;     ///< Peak number of pages acquired at once.

    [[nodiscard]] constexpr std::uint64_t out() const noexcept { return acquired - released; }
};

/// A wrapper that counts the calls to another storage. For tests that check that every page is released.
template <storage_policy Inner = heap>
struct counted {
    using role = storage_role;
    Inner inner = {}; ///< The wrapped storage.

    class state {
    public:
        explicit state(decltype(std::declval<const Inner&>().open(0, 0)) inner) : inner_(std::move(inner)) {}

        [[nodiscard]] bool acquire(page_id page) {
            const bool given = inner_.acquire(page);
            ++(given ? counts_.acquired : counts_.refused);
            counts_.most = std::max(counts_.most, counts_.out());
            return given;
        }
        void release(page_id page) noexcept {
            ++counts_.released;
            inner_.release(page);
        }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

        [[nodiscard]] const storage_counts& counts() const noexcept { return counts_; }

    private:
        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
        storage_counts counts_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return state(inner.open(pages, page_bytes));
    }
};

static_assert(storage_policy<counted<heap>>);

}}} // namespace kvcache::storage
