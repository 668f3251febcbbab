// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/exact_page.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvcache {

/// The exact rows that a codec of whole pages needs beside the pages: which page has some, and what all of them weigh.
/// They are paid from the pages' budget: as many pages as they weigh are set aside.
class exact_books {
public:
    /// `coded`: whether the cache has such a codec; otherwise no page ever has exact rows. `pages` of `page_bytes`.
    exact_books(page_shape shape, std::size_t pages, std::size_t page_bytes, bool coded)
        : shape_(shape), page_bytes_(page_bytes), of_page_(coded ? pages : 0) {}

    /// Pages' worth of memory that so many more exact pages take.
    [[nodiscard]] std::size_t more_aside(std::size_t more) const noexcept { return weight(alive_ + more) - aside(); }
    /// Pages' worth of memory that the exact rows take.
    [[nodiscard]] std::size_t aside() const noexcept { return weight(alive_); }
    [[nodiscard]] std::size_t alive() const noexcept { return alive_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return alive_ * exact_page::bytes_for(shape_); }

    /// The exact rows of a page; null if it has none.
    [[nodiscard]] exact_page* of(page_id page) const noexcept {
        return of_page_.empty() ? nullptr : of_page_[index_of(page)].get();
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
    void drop(page_id page) noexcept {
        if (!of_page_.empty())
            give(page, nullptr);
    }
    /// Gives the rows of one page to another that holds the same and has none.
    void pass_on(page_id from, page_id to) noexcept {
        if (of(from) != nullptr && of(to) == nullptr)
            of_page_[index_of(to)] = std::move(of_page_[index_of(from)]);
    }

    /// Whether those of pages and `leased` others are all there are.
    [[nodiscard]] bool add_up(std::size_t leased) const noexcept {
        for (const auto& rows : of_page_)
            leased += rows != nullptr;
        return leased == alive_;
    }

private:
    [[nodiscard]] std::size_t weight(std::size_t exact) const noexcept {
        return (exact * exact_page::bytes_for(shape_) + page_bytes_ - 1) / page_bytes_;
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::vector<std::shared_ptr<exact_page>> of_page_; // empty where the codec needs none
    std::size_t alive_ = 0;
};

} // namespace kvcache
