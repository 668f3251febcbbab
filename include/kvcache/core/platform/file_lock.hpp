// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/file.hpp>

#if KVCACHE_POSIX

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace platform {

/// Opens a directory and locks it, so that a second call for it waits, in any process, until `opened` is closed. Waits
/// up to `patience`.
[[nodiscard]] inline refusal lock_directory(const std::filesystem::path& directory, std::chrono::seconds patience,
                                            descriptor& opened) {
    opened = descriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!opened)
        return {"cannot be opened", errno};
    const auto end = std::chrono::steady_clock::now() + patience;
    while (::flock(opened.number(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EINTR && (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > end))
            return {"cannot be locked", errno};
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return {};
}

/// How a file is opened.
enum class access {
    read,   ///< It exists.
    create, ///< Read and written; created, readable for its owner alone, if it does not exist.
};

/// Opens a file, but follows no link and waits for no pipe. On failure errno is set.
[[nodiscard]] inline descriptor open_no_link(const std::filesystem::path& file, access how) noexcept {
    const int flags = how == access::read ? O_RDONLY : O_RDWR | O_CREAT;
    return descriptor(::open(file.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
}

/// Whether a path names no file, or another one than this open file: it was removed, renamed or replaced.
[[nodiscard]] inline bool names_other_file(const std::filesystem::path& path, int file) noexcept {
    struct ::stat named = {}, opened = {};
    if (::lstat(path.c_str(), &named) != 0)
        return errno == ENOENT || errno == ENOTDIR;
    return ::fstat(file, &opened) == 0 && (named.st_dev != opened.st_dev || named.st_ino != opened.st_ino);
}

/// Whether some process holds a lock on the first byte of a file; on Linux also this one.
[[nodiscard]] inline bool first_byte_locked(const descriptor& file) noexcept {
    struct ::flock held = {};
    held.l_type = F_WRLCK;
    held.l_whence = SEEK_SET;
    held.l_len = 1;
#if defined(F_OFD_GETLK)
    const bool known = ::fcntl(file.number(), F_OFD_GETLK, &held) == 0; // finds the locks of this process too
#else
    const bool known = ::fcntl(file.number(), F_GETLK, &held) == 0;
#endif
    return known && held.l_type != F_UNLCK;
}

/// Allocates disk space for the first bytes of a file. Returns zero, or ENOSPC, EDQUOT or EFBIG; where the file system
/// cannot do it, nothing happens.
[[nodiscard]] inline int allocate(const descriptor& file, std::size_t bytes) noexcept {
#if defined(__APPLE__)
    const int code = ::ftruncate(file.number(), static_cast<::off_t>(bytes)) == 0 ? 0 : errno;
#else
    const int code = ::posix_fallocate(file.number(), 0, static_cast<::off_t>(bytes));
#endif
    return code == ENOSPC || code == EDQUOT || code == EFBIG ? code : 0;
}

/// Reads bytes from a position on. Returns how many, zero at the end of the file, or -1 and errno.
[[nodiscard]] inline std::ptrdiff_t read_at(const descriptor& file, std::uint64_t position,
                                            std::span<std::byte> to) noexcept {
    return ::pread(file.number(), to.data(), to.size(), static_cast<::off_t>(position));
}

}}} // namespace kvcache::platform

#endif
