// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/storage/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A fixed number of pages of one storage, each free or reference-counted.
template <storage_state Storage>
class page_pool {
public:
    page_pool(std::size_t pages, Storage storage) : storage_(std::move(storage)), holders_(pages, 0) {
        free_.reserve(pages);
        for (std::size_t page = pages; page > 0; --page)
            free_.push_back(page_id{static_cast<std::uint32_t>(page - 1)});
    }

    [[nodiscard]] std::size_t pages() const noexcept { return holders_.size(); }
    [[nodiscard]] std::span<const page_id> free() const noexcept { return free_; }
    [[nodiscard]] std::uint32_t holders(page_id page) const { return holders_[index_of(page)]; }
    [[nodiscard]] const Storage& storage() const noexcept { return storage_; }
    [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return storage_.bytes(page); }

    /// Copies the first rows of a page to another. Returns false if the storage refuses.
    template <class Codec>
    [[nodiscard]] bool copy(const Codec& codec, page_id from, page_id to, std::size_t rows) const {
        if constexpr (device_storage_state<Storage>)
            return detail::copy_rows(storage_, from, to, rows);
        else if constexpr (row_writer<Codec>)
            codec.copy(bytes(from), bytes(to), rows);
        return true;
    }
    /// Zeroes the page, if the host can write it: rows that are never written are still read, with zero weight.
    void clear(page_id page) const {
        if constexpr (host_storage_state<Storage>)
            ranges::fill(bytes(page), std::byte{});
    }

    /// Allocates a free page with one reference; nullopt if no page is free or the storage refuses.
    [[nodiscard]] std::optional<page_id> take() {
        if (free_.empty() || !storage_.acquire(free_.back()))
            return std::nullopt;
        const page_id page = free_.back();
        free_.pop_back();
        holders_[index_of(page)] = 1;
        return page;
    }

    void hold(page_id page) noexcept { ++holders_[index_of(page)]; }

    /// Releases one reference. Returns the number left. The page stays allocated, even at zero, until `reclaim`.
    std::uint32_t drop(page_id page) {
        expects(holders(page) > 0, "a dropped page was held");
        return --holders_[index_of(page)];
    }

    /// Frees a page. Requires: the page has no references.
    void reclaim(page_id page) {
        expects(holders(page) == 0, "a page that is given back has no holder");
        storage_.release(page);
        free_.push_back(page);
    }

private:
    Storage storage_;
    std::vector<std::uint32_t> holders_;
    std::vector<page_id> free_;
};

/// In place of a residual_pool, where a codec writes row by row: no page has residual rows.
struct no_residual_pool {
    no_residual_pool(page_shape, std::size_t, std::size_t) {}
    static constexpr std::size_t more_aside(std::size_t) noexcept { return 0; }
    static constexpr std::size_t aside() noexcept { return 0; }
    static constexpr std::size_t alive() noexcept { return 0; }
    static constexpr std::size_t bytes() noexcept { return 0; }
    static constexpr codec::residual_page* of(page_id) noexcept { return nullptr; }
    static constexpr void drop(page_id) noexcept {}
    static constexpr void pass_on(page_id, page_id) noexcept {}
    static constexpr bool add_up(std::size_t leased) noexcept { return leased == 0; }
};

}} // namespace kvcache
