// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/wipe.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>

#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Another storage whose pages are zeroed before they go back to it: when they are released, when the storage closes,
/// and when another storage is moved into its place. The compiler may not drop the zeroing. What a cache keeps idle
/// for the next match is still in use, and is zeroed when it is evicted.
template <storage_policy Inner = heap>
struct zeroising {
    using role = storage_role;
    Inner inner = {}; ///< The storage that serves.

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
            wipe(inner_.bytes(page));
            out_[index_of(page)] = false;
            inner_.release(page);
        }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

    private:
        void wipe_all() noexcept {
            for (std::size_t page = 0; page < out_.size(); ++page)
                if (out_[page])
                    wipe(inner_.bytes(page_id{static_cast<std::uint32_t>(page)}));
        }

        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
        std::vector<bool> out_; // by page
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return {pages, inner.open(pages, page_bytes)};
    }
};

static_assert(storage_policy<zeroising<heap>>);

} // namespace kvcache
