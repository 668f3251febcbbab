// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/file.hpp>
#include <kvcache/core/platform/memory.hpp>

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
        if (const auto refused = opened.bytes_.open(file); refused.what != nullptr)
            return opened.failure(refused.what, refused.reason);
        return opened;
    }

    /// The whole file; empty for an empty file.
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_.bytes(); }

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

    /// The last part of the path, the name used in errors.
    KVCACHE_LAZY [[nodiscard]] std::string name() const { return path_.filename().string(); }

    /// Starts reading the file from disk sequentially, as far as the system chooses; returns at once.
    void read_ahead() const noexcept { bytes_.read_ahead(); }

    /// Drops the whole pages of these bytes from this process's memory; a later access maps them again. The system's
    /// page cache keeps its copy while it has room. Requires: the bytes are this file's.
    void forget(std::span<const std::byte> part) const noexcept {
        const std::size_t page = platform::system_page_bytes(), whole = bytes().size();
        const auto begin = static_cast<std::size_t>(part.data() - bytes().data());
        const std::size_t first = (begin + page - 1) / page * page, last = (begin + part.size()) / page * page;
        if (first < last && last <= whole)
            bytes_.forget(first, last);
    }

    /// A digest of the file's metadata: name, device, inode, size, mtime and ctime (which no program can set). Returns:
    /// nullopt if the system does not report them, or if the last change was so shortly before `now`, the system's
    /// clock, that a second change might keep the same times.
    KVCACHE_LAZY [[nodiscard]] std::optional<digest> description(std::chrono::system_clock::time_point now) const {
        const auto status = bytes_.status();
        if (!status || !status->modified || !status->changed)
            return std::nullopt;
        // Two seconds: the coarsest clock that a common file system keeps. One more for the fractions dropped here.
        const auto changed = std::chrono::seconds(std::max(status->modified->seconds, status->changed->seconds));
        if (changed + std::chrono::seconds(3) > now.time_since_epoch())
            return std::nullopt;
        digest_builder builder;
        builder.text("kvcache file 1").text(name());
        for (const std::uint64_t number : {status->device, status->inode, status->size})
            builder.number(number);
        for (const auto& time : {*status->modified, *status->changed})
            builder.number(static_cast<std::uint64_t>(time.seconds))
                .number(static_cast<std::uint64_t>(time.nanoseconds));
        return builder.finish();
    }

    /// Checks that every mapped byte is still in the file. Errors: truncated; io, if the file's status cannot be read.
    KVCACHE_LAZY [[nodiscard]] result<void> intact() const {
        if (bytes().empty() || !platform::maps_files)
            return {};
        const auto status = bytes_.status();
        if (!status)
            return failure("has no readable status", errno);
        if (status->size < bytes().size())
            return kvcache::error{error_code::truncated, name(),
                                  detail::joined({path_.string(), " shrank from ", std::to_string(bytes().size()),
                                                  " to ", std::to_string(status->size), " bytes since it was opened"})};
        return {};
    }

private:
    KVCACHE_LAZY [[nodiscard]] kvcache::error failure(const char* what, int reason) const {
        const auto code = reason == ENOENT || reason == ENOTDIR ? error_code::not_found : error_code::io;
        std::string message = detail::joined({path_.string(), " ", what});
        if (reason != 0)
            message += ": " + std::generic_category().message(reason);
        return {code, name(), std::move(message)};
    }

    std::filesystem::path path_;
    platform::file_bytes bytes_;
};

/// Writes the parts to a file atomically: to a temporary file in the same directory, synced to disk, then renamed. A
/// reader of `file` at any time, even after a crash, finds either the previous content or all of the parts. A crash may
/// leave the temporary file NAME.part-NUMBERS, which is never read.
/// Errors: io, with the file's name.
KVCACHE_LAZY [[nodiscard]] inline result<void> write_file(const std::filesystem::path& file,
                                                          std::span<const std::span<const std::byte>> parts) {
    const auto ticks = std::chrono::steady_clock::now().time_since_epoch().count();
    const std::filesystem::path part = detail::joined(
        {file.string(), ".part-", std::to_string(platform::process_number()), "-", std::to_string(ticks)});
    std::error_code ignored;
    const auto failed = [&](const char* what, int reason) {
        return error{error_code::io, file.filename().string(),
                     detail::joined({file.string(), " ", what, ": ", std::generic_category().message(reason)})};
    };
    int reason = 0;
    {
        platform::new_file out;
        if ((reason = out.create(part)) != 0)
            return failed("cannot be created", reason);
        for (const auto bytes : parts)
            if (reason == 0)
                reason = out.write(bytes);
        if (reason == 0)
            reason = out.sync();
    }
    if (reason != 0) {
        std::filesystem::remove(part, ignored);
        return failed("cannot be written", reason);
    }
    if (std::error_code refused; std::filesystem::rename(part, file, refused), refused) {
        std::filesystem::remove(part, ignored);
        return failed("cannot be put in its place", refused.value());
    }
    // If this fails, a crash may restore the previous file.
    platform::sync_directory(file.has_parent_path() ? file.parent_path() : std::filesystem::path("."));
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
