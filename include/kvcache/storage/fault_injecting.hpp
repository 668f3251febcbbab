// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>

#include <cstdint>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// A wrapper that refuses every n-th page of another storage. For tests of error paths.
template <storage_policy Inner = heap>
struct fault_injecting {
    using role = storage_role;
    std::uint64_t every = 1; ///< Every n-th call to acquire fails, counted from one; 0 means none.
    Inner inner = {};        ///< The wrapped storage.

    class state {
    public:
        state(std::uint64_t every, decltype(std::declval<const Inner&>().open(0, 0)) inner)
            : every_(every), inner_(std::move(inner)) {}

        [[nodiscard]] bool acquire(page_id page) {
            ++calls_;
            return (every_ == 0 || calls_ % every_ != 0) && inner_.acquire(page);
        }
        void release(page_id page) noexcept { inner_.release(page); }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

    private:
        std::uint64_t every_;
        std::uint64_t calls_ = 0;
        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return {every, inner.open(pages, page_bytes)};
    }
};

static_assert(storage_policy<fault_injecting<heap>>);

}}} // namespace kvcache::storage
