// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <span>

namespace kvcache {

/// The working state of a storage: the memory of each page. `acquire` makes a page's memory usable and says whether it
/// could; `release` says that its content is no longer needed; `bytes` is the memory of an acquired page.
template <class S>
concept storage_state = std::movable<S> && requires(S s, const S c, page_id page) {
    { s.acquire(page) } -> std::same_as<bool>;
    { s.release(page) }
    noexcept;
    { c.bytes(page) } -> std::same_as<std::span<std::byte>>;
};

/// Where the bytes of pages live.
template <class P>
concept storage_policy = plays<P, storage_role> && requires(const P p, std::size_t n) {
    p.open(n, n); // pages, bytes a page
} && storage_state<opened_by<P, std::size_t, std::size_t>>;

} // namespace kvcache
