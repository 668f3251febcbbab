// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Zeroes bytes that are not read again; the compiler cannot optimize the stores away.
inline void secure_zero(std::span<std::byte> bytes) noexcept {
    if (bytes.empty())
        return;
    std::memset(bytes.data(), 0, bytes.size());
    asm volatile("" : : "r"(bytes.data()) : "memory"); // a possible read of the memory
}

}} // namespace kvcache

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// A wrapper that zeroes the pages of another storage before they return to it: when they are released, when the
/// storage closes, and when another storage is move-assigned to it. The compiler cannot optimize the zeroing away. An
/// unreferenced page that stays cached for later matches is still acquired; it is zeroed when it is evicted.
template <storage_policy Inner = heap>
struct zero_on_release {
    using role = storage_role;
    Inner inner = {}; ///< The wrapped storage.

    class state {
    public:
        state(std::size_t pages, decltype(std::declval<const Inner&>().open(0, 0)) inner)
            : inner_(std::move(inner)), out_(pages, false) {}

        state(state&& other) noexcept : inner_(std::move(other.inner_)), out_(std::exchange(other.out_, {})) {}
        state& operator=(state&& other) noexcept {
            if (this != &other) {
                wipe_all();
                inner_ = std::move(other.inner_);
                out_ = std::exchange(other.out_, {});
            }
            return *this;
        }
        ~state() { wipe_all(); }

        [[nodiscard]] bool acquire(page_id page) { return out_[index_of(page)] = inner_.acquire(page); }
        void release(page_id page) noexcept {
            secure_zero(inner_.bytes(page));
            out_[index_of(page)] = false;
            inner_.release(page);
        }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

    private:
        void wipe_all() noexcept {
            for (std::size_t page = 0; page < out_.size(); ++page)
                if (out_[page])
                    secure_zero(inner_.bytes(page_id{static_cast<std::uint32_t>(page)}));
        }

        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
        std::vector<bool> out_; // by page: acquired
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return {pages, inner.open(pages, page_bytes)};
    }
};

static_assert(storage_policy<zero_on_release<heap>>);

}}} // namespace kvcache::storage
