// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/result.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A regular file, mapped read-only as a whole. Movable; a move does not relocate the bytes.
///
/// The pages are shared with the file: if the file is truncated while it is mapped, reading the lost pages kills the
/// process (SIGBUS). intact() detects this before reading. Replacing a file by rename is safe.
class mapped_file {
public:
    /// Maps `file`.
    /// Errors: not_found; io, if it is not a regular file or the system refuses.
    /// Cost: bytes are read from disk only when they are accessed.
    KVCACHE_LAZY [[nodiscard]] static result<mapped_file> open(const std::filesystem::path& file) {
        mapped_file opened;
        opened.path_ = file;
        // Without O_NONBLOCK, opening a pipe would wait for its writer.
        opened.descriptor_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (opened.descriptor_ < 0)
            return opened.failure("cannot be opened", errno);
        struct ::stat status = {};
        if (::fstat(opened.descriptor_, &status) != 0)
            return opened.failure("has no readable status", errno);
        if (!S_ISREG(status.st_mode))
            return kvcache::error{error_code::io, opened.name(), file.string() + " is not a regular file"};
        opened.size_ = static_cast<std::size_t>(status.st_size);
        if (opened.size_ != 0) {
            void* at = ::mmap(nullptr, opened.size_, PROT_READ, MAP_PRIVATE, opened.descriptor_, 0);
            if (at == MAP_FAILED)
                return opened.failure("cannot be mapped", errno);
            opened.begin_ = static_cast<const std::byte*>(at);
        }
        return opened;
    }

    mapped_file() = default;
    mapped_file(mapped_file&& other) noexcept { swap(other); }
    mapped_file& operator=(mapped_file&& other) noexcept {
        mapped_file(std::move(other)).swap(*this);
        return *this;
    }
    ~mapped_file() {
        if (begin_ != nullptr)
            ::munmap(const_cast<std::byte*>(begin_), size_);
        if (descriptor_ >= 0)
            ::close(descriptor_);
    }

    /// The whole file; empty for an empty file.
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {begin_, begin_ == nullptr ? 0 : size_}; }

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

    /// The last part of the path, the name used in errors.
    KVCACHE_LAZY [[nodiscard]] std::string name() const { return path_.filename().string(); }

    /// Starts reading the file from disk sequentially, as far as the system chooses; returns at once.
    void read_ahead() const noexcept {
        if (begin_ != nullptr)
            ::madvise(const_cast<std::byte*>(begin_), size_, MADV_WILLNEED);
    }

    /// Drops the whole pages of these bytes from this process's memory; a later access maps them again. The system's
    /// page cache keeps its copy while it has room. Requires: the bytes are this file's.
    void forget(std::span<const std::byte> bytes) const noexcept {
        const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        const auto begin = static_cast<std::size_t>(bytes.data() - begin_);
        const std::size_t first = (begin + page - 1) / page * page, last = (begin + bytes.size()) / page * page;
        if (begin_ != nullptr && first < last && last <= size_)
            ::madvise(const_cast<std::byte*>(begin_ + first), last - first, MADV_DONTNEED);
    }

    /// A digest of the file's metadata: name, device, inode, size, mtime and ctime (which no program can set). Returns:
    /// nullopt if the system does not report them, or if the last change was so shortly before `now`, the system's
    /// clock, that a second change might keep the same times.
    KVCACHE_LAZY [[nodiscard]] std::optional<digest> description(std::chrono::system_clock::time_point now) const {
        struct ::stat status = {};
        if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0)
            return std::nullopt;
        // Two seconds: the coarsest clock that a common file system keeps. One more for the fractions dropped here.
        const auto changed = std::chrono::seconds(std::max(status.st_mtim.tv_sec, status.st_ctim.tv_sec));
        if (changed + std::chrono::seconds(3) > now.time_since_epoch())
            return std::nullopt;
        digest_builder builder;
        builder.text("kvcache file 1").text(name());
        for (const auto number : {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
                                  static_cast<std::uint64_t>(status.st_size)})
            builder.number(number);
        for (const ::timespec& time : {status.st_mtim, status.st_ctim})
            builder.number(static_cast<std::uint64_t>(time.tv_sec)).number(static_cast<std::uint64_t>(time.tv_nsec));
        return builder.finish();
    }

    /// Checks that every mapped byte is still in the file. Errors: truncated; io, if the file's status cannot be read.
    KVCACHE_LAZY [[nodiscard]] result<void> intact() const {
        struct ::stat status = {};
        if (descriptor_ >= 0 && ::fstat(descriptor_, &status) != 0)
            return failure("has no readable status", errno);
        if (descriptor_ >= 0 && static_cast<std::size_t>(status.st_size) < size_)
            return kvcache::error{error_code::truncated, name(),
                                  detail::joined({path_.string(), " shrank from ", std::to_string(size_), " to ",
                                                  std::to_string(status.st_size), " bytes since it was opened"})};
        return {};
    }

private:
    void swap(mapped_file& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(descriptor_, other.descriptor_);
        std::swap(begin_, other.begin_);
        std::swap(size_, other.size_);
    }

    KVCACHE_LAZY [[nodiscard]] kvcache::error failure(const char* what, int reason) const {
        const auto code = reason == ENOENT || reason == ENOTDIR ? error_code::not_found : error_code::io;
        return {code, name(),
                detail::joined({path_.string(), " ", what, ": ", std::generic_category().message(reason)})};
    }

    std::filesystem::path path_;
    int descriptor_ = -1;
    const std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

}} // namespace kvcache
