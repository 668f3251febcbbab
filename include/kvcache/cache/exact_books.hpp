// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/exact_page.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The exact rows that a codec of whole pages needs beside the pages: which page has some, and what all of them weigh.
/// They are paid from the pages' budget: as many pages as they weigh are set aside.
/// `Coded`: whether the cache has such a codec; otherwise no page ever has exact rows.
template <bool Coded>
class exact_books {
public:
    /// For `pages` of `page_bytes`.
    exact_books(page_shape shape, std::size_t pages, std::size_t page_bytes) : shape_(shape), page_bytes_(page_bytes) {
        if constexpr (Coded)
            of_page_.resize(pages);
    }

    /// Pages' worth of memory that so many more exact pages take.
    [[nodiscard]] std::size_t more_aside(std::size_t more) const noexcept { return weight(alive_ + more) - aside(); }
    /// Pages' worth of memory that the exact rows take.
    [[nodiscard]] std::size_t aside() const noexcept { return weight(alive_); }
    [[nodiscard]] std::size_t alive() const noexcept { return alive_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return alive_ * exact_page::bytes_for(shape_); }

    /// The exact rows of a page; null if it has none.
    [[nodiscard]] exact_page* of([[maybe_unused]] page_id page) const noexcept {
        if constexpr (Coded)
            return of_page_[index_of(page)].get();
        else
            return nullptr;
    }

    /// Throws: bad_alloc.
    [[nodiscard]] std::shared_ptr<exact_page> make() {
        auto made = std::make_shared<exact_page>(shape_);
        ++alive_;
        return made;
    }
    /// Ends what was made and given to no page.
    void end(std::shared_ptr<exact_page> rows) noexcept { alive_ -= rows != nullptr; }

    void give(page_id page, std::shared_ptr<exact_page> rows) noexcept {
        end(std::exchange(of_page_[index_of(page)], std::move(rows)));
    }
    /// Ends the exact rows of a page, if it has some.
    void drop([[maybe_unused]] page_id page) noexcept {
        if constexpr (Coded)
            give(page, nullptr);
    }
    /// Gives the rows of one page to another that holds the same and has none.
    void pass_on([[maybe_unused]] page_id from, [[maybe_unused]] page_id to) noexcept {
        if constexpr (Coded)
            if (of(from) != nullptr && of(to) == nullptr)
                of_page_[index_of(to)] = std::move(of_page_[index_of(from)]);
    }

    /// Whether those of pages and `leased` others are all there are.
    [[nodiscard]] bool add_up(std::size_t leased) const noexcept {
        if constexpr (Coded)
            for (const auto& rows : of_page_)
                leased += rows != nullptr;
        return leased == alive_;
    }

private:
    [[nodiscard]] std::size_t weight(std::size_t exact) const noexcept {
        return Coded ? (exact * exact_page::bytes_for(shape_) + page_bytes_ - 1) / page_bytes_ : 0;
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::vector<std::shared_ptr<exact_page>> of_page_; // empty where the codec needs none
    std::size_t alive_ = 0;
};

} // namespace kvcache
