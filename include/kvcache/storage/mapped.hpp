// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/memory_mapping.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

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
            const auto system_page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
            const auto whole = [&](std::size_t bytes) { return (bytes + system_page - 1) / system_page * system_page; };
            if (pages == 0 || stride_ == 0)
                return;
            if (pages > (std::numeric_limits<std::size_t>::max() >> 1) / stride_) {
                reason_ = error{error_code::out_of_range, "pages", "the pages are past what can be addressed"};
                return;
            }
            growth_ = whole(std::max({how.growth, stride_, std::size_t{1}}));
            create(how.unlink);
            if (!reason_) {
                memory_ =
                    address_range::map(whole(pages * stride_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
                if (memory_.empty())
                    reason_ = failure("cannot be given addresses", errno);
            }
        }

        state(state&& other) noexcept
            : page_bytes_(other.page_bytes_),
              stride_(other.stride_),
              growth_(other.growth_),
              usable_(std::exchange(other.usable_, 0)),
              descriptor_(std::exchange(other.descriptor_, -1)),
              file_(std::move(other.file_)),
              memory_(std::move(other.memory_)),
              reason_(std::move(other.reason_)) {}
        state& operator=(state&& other) noexcept {
            std::swap(page_bytes_, other.page_bytes_);
            std::swap(stride_, other.stride_);
            std::swap(growth_, other.growth_);
            std::swap(usable_, other.usable_);
            std::swap(descriptor_, other.descriptor_);
            std::swap(file_, other.file_);
            std::swap(memory_, other.memory_);
            std::swap(reason_, other.reason_);
            return *this;
        }
        ~state() {
            if (descriptor_ >= 0)
                ::close(descriptor_);
        }

        /// Returns false if the file cannot grow to hold the page; `status` then gives the reason. A later call tries
        /// again.
        [[nodiscard]] bool acquire(page_id page) {
            const std::size_t end = (index_of(page) + std::size_t{1}) * stride_;
            return end <= usable_ || grow(end);
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
        [[nodiscard]] std::size_t size() const noexcept { return usable_; }

    private:
        void create(bool nameless) {
            if (file_.empty()) {
                std::error_code none;
                const auto folder = std::filesystem::temp_directory_path(none);
                std::string name = ((none ? std::filesystem::path("/tmp") : folder) / "kvcache-XXXXXX").string();
                descriptor_ = ::mkstemp(name.data());
                file_ = std::move(name);
            } else {
                descriptor_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
            }
            if (descriptor_ < 0)
                reason_ = failure("cannot be created", errno);
            else if (nameless && ::unlink(file_.c_str()) != 0)
                reason_ = failure("cannot be unlinked", errno);
        }

        // Disk space is allocated before it is mapped: otherwise a write would die on a full disk (SIGBUS).
        [[nodiscard]] bool grow(std::size_t end) {
            if (descriptor_ < 0 || memory_.empty())
                return false;
            const std::size_t all = memory_.bytes().size();
            const std::size_t wanted = std::min(all, (end + growth_ - 1) / growth_ * growth_);
            const std::size_t more = wanted - usable_;
            if (const int why =
                    ::posix_fallocate(descriptor_, static_cast<::off_t>(usable_), static_cast<::off_t>(more));
                why != 0) {
                reason_ = failure("cannot grow", why);
                return false;
            }
            if (::mmap(memory_.bytes().data() + usable_, more, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                       descriptor_, static_cast<::off_t>(usable_)) == MAP_FAILED) {
                reason_ = failure("cannot be mapped", errno);
                return false;
            }
            usable_ = wanted;
            reason_.reset();
            return true;
        }

        [[nodiscard]] error failure(const char* what, int why) const {
            return {error_code::io, file_.filename().string(),
                    file_.string() + " " + what + ": " + std::generic_category().message(why)};
        }

        std::size_t page_bytes_;
        std::size_t stride_; // distance between pages, in bytes
        std::size_t growth_ = 1;
        std::size_t usable_ = 0; // bytes of the file, all mapped
        int descriptor_ = -1;
        std::filesystem::path file_;
        address_range memory_;
        std::optional<error> reason_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const { return {*this, pages, page_bytes}; }
};

static_assert(storage_policy<mapped>);

}}} // namespace kvcache::storage
