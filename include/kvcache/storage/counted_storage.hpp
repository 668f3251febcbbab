// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

/// What a storage was asked for.
struct storage_counts {
    std::uint64_t acquired = 0; ///< Pages given.
    std::uint64_t refused = 0;  ///< Pages asked for and not given.
    std::uint64_t released = 0; ///< Pages taken back.
    std::uint64_t most = 0;     ///< Pages that were out at one time.

    [[nodiscard]] constexpr std::uint64_t out() const noexcept { return acquired - released; }
};

/// Another storage, with a count of what it was asked for: what a host's tests need to see that every page comes back.
template <storage_policy Inner = heap>
struct counted_storage {
    using role = storage_role;
    Inner inner = {}; ///< The storage that serves.

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

static_assert(storage_policy<counted_storage<heap>>);

} // namespace kvcache
