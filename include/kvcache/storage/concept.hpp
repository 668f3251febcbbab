// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

template <class S>
concept keeps_pages = std::movable<S> && requires(S s, page_id page) {
    { s.acquire(page) } -> std::same_as<bool>;
    { s.release(page) }
    noexcept;
};

// Copies the first rows of a page, or all of it.
template <class S>
auto copy_rows(const S& storage, page_id from, page_id to, std::size_t rows) {
    if constexpr (requires { storage.copy(from, to, rows); })
        return storage.copy(from, to, rows);
    else if constexpr (requires { storage.copy(from, to); })
        return storage.copy(from, to);
}

} // namespace detail

/// A storage whose pages the host can access: `bytes` returns the memory of an acquired page.
template <class S>
concept host_storage_state = detail::keeps_pages<S> && requires(const S c, page_id page) {
    { c.bytes(page) } -> std::same_as<std::span<std::byte>>;
};

/// A storage whose pages the host cannot address. `copy` copies one acquired page to another, or the first rows of it,
/// and returns whether it succeeded. `status` returns the reason of the last refused page or copy.
template <class S>
concept device_storage_state = detail::keeps_pages<S> && !host_storage_state<S> && requires(const S c, page_id page) {
    { detail::copy_rows(c, page, page, 1) } -> std::same_as<bool>;
    { c.status() } -> std::same_as<result<void>>;
};

/// The working state of a storage: the memory of each page. `acquire` makes a page's memory usable and returns whether
/// it succeeded. `release` declares its content no longer needed.
template <class S>
concept storage_state = host_storage_state<S> || device_storage_state<S>;

/// A policy that decides where the bytes of pages live.
template <class P>
concept storage_policy = plays<P, storage_role> && requires(const P p, std::size_t n) {
    p.open(n, n); // pages, bytes a page
} && storage_state<opened_by<P, std::size_t, std::size_t>>;

}} // namespace kvcache
