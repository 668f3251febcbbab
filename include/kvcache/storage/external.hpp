// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/storage/concept.hpp>

#include <concepts>
#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// A host's function that copies a block: (from, to), or (from, to, rows) with the number of leading rows in use. With
/// a mutex as locking, another thread may be writing later rows of `from` meanwhile. Returns whether it succeeded.
class block_copy {
public:
    block_copy() = default;
    template <class F>
        requires(!std::same_as<F, block_copy>)
    block_copy(F copy) {
        constexpr bool whole = std::is_invocable_r_v<bool, F&, page_id, page_id>,
                       rows = std::is_invocable_r_v<bool, F&, page_id, page_id, std::size_t>;
        static_assert((whole || rows) && std::is_copy_constructible_v<F>,
                      "external memory's copy is bool(page_id from, page_id to), or has a third parameter, the number "
                      "of rows in use, and can itself be copied");
        if constexpr (rows)
            copy_ = std::move(copy);
        else if constexpr (whole)
            if (std::function<bool(page_id, page_id)> both = std::move(copy))
                copy_ = [both = std::move(both)](page_id from, page_id to, std::size_t) { return both(from, to); };
    }

    [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(copy_); }
    [[nodiscard]] bool operator()(page_id from, page_id to, std::size_t rows) const { return copy_(from, to, rows); }

private:
    std::function<bool(page_id, page_id, std::size_t)> copy_;
};

/// Pages are blocks of the host's own tensors, numbered from 0: the cache knows which are cached, shared and free, and
/// reads and writes none of them. The codec of such a cache is codec::external. A commit may change entries of a
/// sequence's page table, and calls `on_move` for each, unless the cache merges no equal pages (cache_config). The
/// functions run while the cache is locked and must not call it. A copy that throws has failed; what the other
/// functions throw is discarded.
struct external {
    using role = storage_role;

    /// Called where a sequence is to write into a block that it shares. If it fails, so does the reservation. Required.
    block_copy copy = {};
    /// Called when a block without references is evicted; its content is unknown to the cache from now on.
    std::function<void(page_id block)> on_evict = {};
    /// Called in `commit` for each entry that changes because its block is merged with an equal one. Required, unless
    /// the cache has merge_equal_pages = false.
    std::function<void(const moved_entry& entry)> on_move = {};

    class state;
    /// Requires: `copy` is given.
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

class external::state {
public:
    explicit state(external host) : host_(std::move(host)) {
        require(static_cast<bool>(host_.copy), "external memory has a function that copies a block");
    }

    [[nodiscard]] bool acquire(page_id) noexcept { return true; }
    void release(page_id) noexcept {}
    [[nodiscard]] bool copy(page_id from, page_id to, std::size_t rows) const {
        failed_ = true; // also if the host throws
        detail::ignore_exceptions([&] { failed_ = !host_.copy(from, to, rows); });
        return !failed_;
    }
    /// Errors: io, if the last copy failed, once for each.
    [[nodiscard]] result<void> status() const {
        return std::exchange(failed_, false)
                   ? result<void>(error{error_code::io, "copy", "the host could not copy a block"})
                   : result<void>();
    }

    /// Whether the host learns of entries that a commit changes.
    [[nodiscard]] bool follows_moves() const noexcept { return static_cast<bool>(host_.on_move); }
    void on_evict(page_id block) const {
        if (host_.on_evict)
            detail::ignore_exceptions([&] { host_.on_evict(block); });
    }
    void on_move(const moved_entry& entry) const {
        if (host_.on_move)
            detail::ignore_exceptions([&] { host_.on_move(entry); });
    }

private:
    external host_;
    mutable bool failed_ = false; // changes only while the cache is locked
};

inline external::state external::open(std::size_t, std::size_t) const {
    return state{*this};
}

static_assert(storage_policy<external>);

}}} // namespace kvcache::storage
