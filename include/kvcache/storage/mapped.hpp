// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/file.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <concepts>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

#if KVCACHE_POSIX

/// Pages in a mapped file: the system writes idle pages to disk, so a cache can be larger than memory. The file grows
/// with the pages in use, in steps whose disk space is allocated first. On a full disk a page is refused, and `status`
/// gives the reason. The file is scratch space: another cache cannot use its content.
struct mapped {
    using role = storage_role;
    std::filesystem::path file = {}; ///< An unused file name; empty: a new file in the temporary directory.
    bool unlink = true;              ///< Unlinks the file at once, so that nothing remains even after a crash.
    std::size_t growth = std::size_t{64} << 20; ///< Bytes that the file grows by, at least.

    class state {
    public:
        state(const mapped& how, std::size_t pages, std::size_t page_bytes)
            : page_bytes_(page_bytes),
              stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes),
              file_(how.file) {
            const std::size_t system_page = platform::system_page_bytes();
            const auto whole = [&](std::size_t bytes) { return (bytes + system_page - 1) / system_page * system_page; };
            if (pages == 0 || stride_ == 0)
                return;
            if (pages > (std::numeric_limits<std::size_t>::max() >> 1) / stride_) {
                reason_ = error{error_code::out_of_range, "pages", "the pages are past what can be addressed"};
                return;
            }
            growth_ = whole(std::max({how.growth, stride_, std::size_t{1}}));
            usable_ = succeeds(memory_.create(file_, how.unlink)) && succeeds(memory_.reserve(whole(pages * stride_)));
        }

        /// Returns false if the file cannot grow to hold the page; `status` then gives the reason. A later call tries
        /// again.
        [[nodiscard]] bool acquire(page_id page) {
            const std::size_t end = (index_of(page) + std::size_t{1}) * stride_;
            return end <= memory_.size() || grow(end);
        }
        void release(page_id) noexcept {}
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
            return memory_.bytes().subspan(index_of(page) * stride_, page_bytes_);
        }

        /// The reason why the last page was refused, if it was. Errors: io, out_of_range.
        [[nodiscard]] result<void> status() const { return reason_ ? result<void>(*reason_) : result<void>(); }
        /// The file's name, which no longer exists if `unlink` is set.
        [[nodiscard]] const std::filesystem::path& file() const noexcept { return file_; }
        /// The size of the file in bytes.
        [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }

    private:
        [[nodiscard]] bool grow(std::size_t end) {
            const std::size_t wanted = std::min(memory_.bytes().size(), (end + growth_ - 1) / growth_ * growth_);
            return usable_ && succeeds(memory_.grow(wanted));
        }

        // Notes a refusal as the reason.
        [[nodiscard]] bool succeeds(const platform::refusal& refused) {
            reason_.reset();
            if (refused.what != nullptr)
                reason_ =
                    error{error_code::io, file_.filename().string(),
                          file_.string() + " " + refused.what + ": " + std::generic_category().message(refused.reason)};
            return !reason_;
        }

        std::size_t page_bytes_;
        std::size_t stride_; // distance between pages, in bytes
        std::size_t growth_ = 1;
        bool usable_ = false; // the file is there, and has addresses
        std::filesystem::path file_;
        platform::growing_file memory_;
        std::optional<error> reason_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const { return {*this, pages, page_bytes}; }
};

#else

/// Not on this system: see the message.
struct mapped {
    using role = storage_role;
    std::filesystem::path file = {};
    bool unlink = true;
    std::size_t growth = std::size_t{64} << 20;

    template <class Number>
    [[nodiscard]] heap::state open(Number pages, std::size_t page_bytes) const {
        static_assert(!std::integral<Number>, "kvcache: storage::mapped needs the file mappings of POSIX, which this "
                                              "system lacks: use storage::heap, and a tier for what does not fit");
        return heap{}.open(pages, page_bytes);
    }
};

#endif

static_assert(storage_policy<mapped>);

}}} // namespace kvcache::storage
