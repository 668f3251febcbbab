// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/tier/lmdb_check.hpp>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// The files of an LMDB environment, examined before LMDB opens them. While an object lives, no other process examines
/// or opens the directory by this class.
class lmdb_files {
public:
    explicit lmdb_files(const std::filesystem::path& directory) : directory_(directory) {}
    lmdb_files(const lmdb_files&) = delete;
    lmdb_files& operator=(const lmdb_files&) = delete;
    ~lmdb_files() {
        if (lock_ >= 0)
            ::close(lock_);
    }

    /// Creates the directory, readable by its owner only, if it is absent. Refuses files that are not regular: LMDB
    /// would overwrite the target of a link. Checks data.mdb, unless another process has it open; if it is damaged,
    /// renames it to data.mdb.damaged-N. Returns what the damage was, if any. Errors: io; malformed, for a damaged file
    /// that cannot be renamed. Throws: bad_alloc. Cost: that of lmdb_check; waits up to 30 s for a process that checks
    /// the same directory.
    [[nodiscard]] result<std::optional<error>> examine(std::span<const lmdb_table> tables) {
        std::error_code reason;
        if (std::filesystem::create_directories(directory_, reason))
            std::filesystem::permissions(directory_, std::filesystem::perms::owner_all, reason);
        if (reason)
            return failure("directory", directory_, "cannot be made: " + reason.message());
        for (const char* name : {"data.mdb", "lock.mdb"}) {
            struct ::stat status = {};
            if (::lstat((directory_ / name).c_str(), &status) == 0 && !S_ISREG(status.st_mode))
                return failure(name, directory_ / name, "is not a regular file, and is not opened; remove it");
        }
        if (auto alone = lock(); !alone)
            return alone.error();
        if (auto examined = prepare_lock_file(); !examined || *examined)
            return examined ? result(std::optional<error>()) : examined.error();
        const std::filesystem::path data = directory_ / "data.mdb";
        const int file = ::open(data.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (file < 0)
            return errno == ENOENT
                       ? result(std::optional<error>())
                       : failure("data.mdb", data, std::string("cannot be opened: ") + std::strerror(errno));
        const auto sound = lmdb_check::run(file, tables);
        ::close(file);
        if (sound)
            return std::optional<error>();
        if (sound.error().code != error_code::malformed)
            return sound.error();
        return set_aside(data, sound.error());
    }

private:
    [[nodiscard]] static error failure(const char* field, const std::filesystem::path& file, const std::string& what) {
        return {error_code::io, field, file.string() + ' ' + what};
    }

    // A lock on the directory, since a lock on lock.mdb would be LMDB's.
    [[nodiscard]] result<void> lock() {
        lock_ = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (lock_ < 0)
            return failure("directory", directory_, std::string("cannot be opened: ") + std::strerror(errno));
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EINTR && (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > end))
                return failure("directory", directory_, std::string("cannot be locked: ") + std::strerror(errno));
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return {};
    }

    // Returns whether a process has the environment open: it then holds LMDB's lock on the first byte of lock.mdb.
    // If not, allocates the file, because LMDB maps it, and a write to a page without a block kills the process.
    [[nodiscard]] result<bool> prepare_lock_file() const {
        constexpr int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
        const int file = ::open((directory_ / "lock.mdb").c_str(), flags, 0600);
        if (file < 0)
            return failure("lock.mdb", directory_ / "lock.mdb",
                           std::string("cannot be opened: ") + std::strerror(errno));
        struct ::flock held = {};
        held.l_type = F_WRLCK;
        held.l_whence = SEEK_SET;
        held.l_len = 1;
#if defined(F_OFD_GETLK)
        const bool known = ::fcntl(file, F_OFD_GETLK, &held) == 0; // finds the locks of this process too
#else
        const bool known = ::fcntl(file, F_GETLK, &held) == 0;
#endif
        const bool in_use = known && held.l_type != F_UNLCK;
        const int code = in_use ? 0 : ::posix_fallocate(file, 0, lock_bytes);
        ::close(file);
        if (code == ENOSPC || code == EDQUOT || code == EFBIG)
            return failure("lmdb", directory_ / "lock.mdb", std::string("cannot be written: ") + std::strerror(code));
        return in_use;
    }

    [[nodiscard]] static result<std::optional<error>> set_aside(const std::filesystem::path& data, error damage) {
        std::filesystem::path to;
        for (int n = 1; to.empty() || std::filesystem::exists(std::filesystem::symlink_status(to)); ++n)
            to = data.string() + ".damaged-" + std::to_string(n);
        std::error_code reason;
        std::filesystem::rename(data, to, reason);
        damage.message += reason ? "; it cannot be renamed: " + reason.message() : "; it is now " + to.string();
        if (reason)
            return damage;
        return std::optional(std::move(damage));
    }

    static constexpr ::off_t lock_bytes = 32768; // for 510 readers

    std::filesystem::path directory_;
    int lock_ = -1;
};

}}} // namespace kvcache::tier
