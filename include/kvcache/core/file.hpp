// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

namespace detail {

/// An open file descriptor, closed at the end of the scope.
struct open_descriptor {
    int number = -1;

    explicit open_descriptor(int n) noexcept : number(n) {}
    open_descriptor(const open_descriptor&) = delete;
    open_descriptor& operator=(const open_descriptor&) = delete;
    ~open_descriptor() {
        if (number >= 0)
            ::close(number);
    }
};

/// Writes all bytes. Returns 0, or the errno of the failure.
KVCACHE_LAZY [[nodiscard]] inline int write_all(int descriptor, std::span<const std::byte> bytes) noexcept {
    constexpr std::size_t most = std::size_t{1} << 30; // a single call takes 2 GiB at most
    while (!bytes.empty()) {
        const auto written = ::write(descriptor, bytes.data(), std::min(most, bytes.size()));
        if (written < 0 && errno != EINTR)
            return errno;
        if (written > 0)
            bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return 0;
}

} // namespace detail

/// Writes the parts to a file atomically: to a temporary file in the same directory, synced to disk, then renamed. A
/// reader of `file` at any time, even after a crash, finds either the previous content or all of the parts. A crash may
/// leave the temporary file NAME.part-NUMBERS, which is never read.
/// Errors: io, with the file's name.
KVCACHE_LAZY [[nodiscard]] inline result<void> write_file(const std::filesystem::path& file,
                                                          std::span<const std::span<const std::byte>> parts) {
    const auto ticks = std::chrono::steady_clock::now().time_since_epoch().count();
    const std::filesystem::path part =
        detail::joined({file.string(), ".part-", std::to_string(::getpid()), "-", std::to_string(ticks)});
    const auto failed = [&](const char* what, int reason) {
        return error{error_code::io, file.filename().string(),
                     detail::joined({file.string(), " ", what, ": ", std::generic_category().message(reason)})};
    };
    {
        const detail::open_descriptor out(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (out.number < 0)
            return failed("cannot be created", errno);
        int reason = 0;
        for (const auto bytes : parts)
            if (reason == 0)
                reason = detail::write_all(out.number, bytes);
        if (reason == 0 && ::fsync(out.number) != 0)
            reason = errno;
        if (reason != 0) {
            ::unlink(part.c_str());
            return failed("cannot be written", reason);
        }
    }
    if (std::error_code reason; std::filesystem::rename(part, file, reason), reason) {
        ::unlink(part.c_str());
        return failed("cannot be put in its place", reason.value());
    }
    // Syncs the directory entry. If this fails, a crash may restore the previous file.
    const auto beside = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
    const detail::open_descriptor folder(::open(beside.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.number >= 0)
        static_cast<void>(::fsync(folder.number));
    return {};
}

namespace detail {

/// Formats a name from a file for an error: at most 80 bytes, control characters as '?', never empty.
KVCACHE_LAZY [[nodiscard]] inline std::string shown(std::string_view name) {
    if (name.empty())
        return "\"\"";
    constexpr std::size_t most = 80;
    std::size_t length = std::min(name.size(), most);
    while (length < name.size() && length != 0 && (static_cast<unsigned char>(name[length]) & 0xC0) == 0x80)
        --length; // never inside a UTF-8 sequence
    std::string text(name.substr(0, length));
    for (char& c : text)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
            c = '?';
    return length < name.size() ? text + "..." : text;
}

} // namespace detail

}} // namespace kvcache
