// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The residual rows that a codec of whole pages keeps in addition to the pages: those of each page, and their total
/// size. They count toward the cache's limit: as many pages as they occupy are set aside. `Coded`: whether the cache
/// has such a codec; otherwise no page has residual rows.
template <bool Coded>
class residual_pool {
public:
    /// Manages the residual rows of `pages` pages of `page_bytes` each.
    residual_pool(page_shape shape, std::size_t pages, std::size_t page_bytes)
        : shape_(shape), page_bytes_(page_bytes) {
        if constexpr (Coded)
            of_page_.resize(pages);
    }

    /// Additional pages to set aside for `more` more residual pages.
    [[nodiscard]] std::size_t more_aside(std::size_t more) const noexcept { return weight(alive_ + more) - aside(); }
    /// Pages set aside for the residual rows.
    [[nodiscard]] std::size_t aside() const noexcept { return weight(alive_); }
    [[nodiscard]] std::size_t alive() const noexcept { return alive_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return alive_ * codec::residual_page::bytes_for(shape_); }

    /// The residual rows of a page; null if it has none.
    [[nodiscard]] codec::residual_page* of([[maybe_unused]] page_id page) const noexcept {
        if constexpr (Coded)
            return of_page_[index_of(page)].get();
        else
            return nullptr;
    }

    /// Throws: bad_alloc.
    [[nodiscard]] std::shared_ptr<codec::residual_page> make() {
        auto made = std::make_shared<codec::residual_page>(shape_);
        ++alive_;
        return made;
    }
    /// Frees residual rows that were given to no page.
    void end(std::shared_ptr<codec::residual_page> rows) noexcept { alive_ -= rows != nullptr; }

    void give(page_id page, std::shared_ptr<codec::residual_page> rows) noexcept {
        end(std::exchange(of_page_[index_of(page)], std::move(rows)));
    }
    /// Frees the residual rows of a page, if it has any.
    void drop([[maybe_unused]] page_id page) noexcept {
        if constexpr (Coded)
            give(page, nullptr);
    }
    /// Moves the rows of one page to another that holds the same tokens and has no residual rows.
    void pass_on([[maybe_unused]] page_id from, [[maybe_unused]] page_id to) noexcept {
        if constexpr (Coded)
            if (of(from) != nullptr && of(to) == nullptr)
                of_page_[index_of(to)] = std::move(of_page_[index_of(from)]);
    }

    /// Returns whether the residual rows of pages and `leased` others account for all that exist.
    [[nodiscard]] bool add_up(std::size_t leased) const noexcept {
        if constexpr (Coded)
            for (const auto& rows : of_page_)
                leased += rows != nullptr;
        return leased == alive_;
    }

private:
    [[nodiscard]] std::size_t weight(std::size_t exact) const noexcept {
        return Coded ? (exact * codec::residual_page::bytes_for(shape_) + page_bytes_ - 1) / page_bytes_ : 0;
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::vector<std::shared_ptr<codec::residual_page>> of_page_; // empty if the codec needs none
    std::size_t alive_ = 0;
};

}} // namespace kvcache
