// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI {

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

}} // namespace kvcache
