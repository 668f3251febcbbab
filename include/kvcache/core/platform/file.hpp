// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/memory.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#if KVCACHE_POSIX
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#elif KVCACHE_WINDOWS
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <sys/stat.h>
#include <sys/types.h>
#else
#include <cstdio>
#include <new>
#endif

namespace kvcache { inline namespace KVCACHE_ABI { namespace platform {

/// Whether file_bytes maps files; if not, it reads them.
inline constexpr bool maps_files = KVCACHE_POSIX || KVCACHE_WINDOWS;

/// Why the system refused something.
struct refusal {
    const char* what = nullptr; ///< "cannot be opened"; null: it did not refuse.
    int reason = 0;             ///< An errno; zero: `what` says it all.
};

/// The number of this process, for names of temporary files.
[[nodiscard]] inline int process_number() noexcept {
#if KVCACHE_POSIX
    return ::getpid();
#elif KVCACHE_WINDOWS
    return ::_getpid();
#else
    return 0;
#endif
}

/// What the system knows of a file.
struct file_status {
    /// A moment, counted from 1970.
    struct moment {
        std::int64_t seconds = 0, nanoseconds = 0;
    };
    std::uint64_t device = 0, inode = 0, size = 0;
    std::optional<moment> modified = {},
                          changed = {}; ///< None where the system keeps no time that a program cannot set.
};

/// The descriptor of an open file, closed at the end of its scope.
class descriptor {
public:
    descriptor() = default;
    explicit descriptor(int number) noexcept : number_(number) {}
    descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~descriptor() {
#if KVCACHE_POSIX
        if (number_ >= 0)
            ::close(number_);
#elif KVCACHE_WINDOWS
        if (number_ >= 0)
            ::_close(number_);
#endif
    }

    [[nodiscard]] explicit operator bool() const noexcept {
        return number_ >= 0;
    }
    [[nodiscard]] int number() const noexcept {
        return number_;
    }

private:
    int number_ = -1;
};

#if KVCACHE_POSIX || KVCACHE_WINDOWS

/// The status of an open file; nullopt and errno if the system refuses, or if it is not a regular file (EINVAL).
KVCACHE_LAZY [[nodiscard]] inline std::optional<file_status> status_of(int file) noexcept {
#if KVCACHE_POSIX
    struct ::stat found = {};
    if (::fstat(file, &found) != 0)
        return std::nullopt;
    const bool regular = S_ISREG(found.st_mode);
#else
    struct ::_stat64 found = {};
    if (::_fstat64(file, &found) != 0)
        return std::nullopt;
    const bool regular = (found.st_mode & _S_IFMT) == _S_IFREG;
#endif
    if (!regular) {
        errno = EINVAL;
        return std::nullopt;
    }
    file_status made{.device = static_cast<std::uint64_t>(found.st_dev),
                     .inode = static_cast<std::uint64_t>(found.st_ino),
                     .size = static_cast<std::uint64_t>(found.st_size)};
#if defined(__APPLE__)
    made.modified = {found.st_mtimespec.tv_sec, found.st_mtimespec.tv_nsec};
    made.changed = {found.st_ctimespec.tv_sec, found.st_ctimespec.tv_nsec};
#elif KVCACHE_POSIX
    made.modified = {found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
    made.changed = {found.st_ctim.tv_sec, found.st_ctim.tv_nsec};
#endif
    return made;
}

#endif

/// The bytes of a regular file: mapped, or read as a whole where the system has no mappings.
class file_bytes {
public:
    /// Opens a file in place of the one before.
    KVCACHE_LAZY [[nodiscard]] refusal open(const std::filesystem::path& file) {
        *this = {};
#if KVCACHE_POSIX || KVCACHE_WINDOWS
#if KVCACHE_POSIX
        // Without O_NONBLOCK, opening a pipe would wait for its writer.
        file_ = descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
#else
        file_ = descriptor(::_wopen(file.c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT));
#endif
        if (!file_)
            return {"cannot be opened", errno};
        const auto status = status_of(file_.number());
        if (!status)
            return errno == EINVAL ? refusal{"is not a regular file"} : refusal{"has no readable status", errno};
        if (status->size > std::numeric_limits<std::size_t>::max() / 2)
            return {"is larger than this process can address", EFBIG};
        if (status->size > 0)
            begin_ = map(static_cast<std::size_t>(status->size));
        size_ = begin_ == nullptr ? 0 : static_cast<std::size_t>(status->size);
        return begin_ == nullptr && status->size > 0 ? refusal{"cannot be mapped", errno} : refusal{};
#else
        std::error_code reason;
        if (const auto kind = std::filesystem::status(file, reason).type();
            kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::not_found)
            return {"is not a regular file"};
        std::FILE* const from = std::fopen(file.c_str(), "rb");
        if (from == nullptr)
            return {"cannot be opened", errno};
        const auto bytes = std::filesystem::file_size(file, reason);
        refusal made = reason ? refusal{"has no readable status", reason.value()} : refusal{};
        if (made.what == nullptr && bytes > 0) {
            begin_ = static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), std::nothrow));
            if (begin_ == nullptr)
                made = {"cannot be read", ENOMEM};
            else if (std::fread(begin_, 1, static_cast<std::size_t>(bytes), from) != bytes)
                made = {"cannot be read", EIO};
        }
        size_ = begin_ == nullptr ? 0 : static_cast<std::size_t>(bytes);
        std::fclose(from);
        return made;
#endif
    }

    file_bytes() = default;
    file_bytes(file_bytes&& other) noexcept {
        swap(other);
    }
    file_bytes& operator=(file_bytes&& other) noexcept {
        file_bytes(std::move(other)).swap(*this);
        return *this;
    }
    ~file_bytes() {
        if (begin_ == nullptr)
            return;
#if KVCACHE_POSIX
        ::munmap(begin_, size_);
#elif KVCACHE_WINDOWS
        ::UnmapViewOfFile(begin_);
#else
        ::operator delete(begin_);
#endif
    }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
        return {begin_, size_};
    }

    /// The file's status now; none where it was read, and where the system refuses.
    KVCACHE_LAZY [[nodiscard]] std::optional<file_status> status() const noexcept {
#if KVCACHE_POSIX || KVCACHE_WINDOWS
        return status_of(file_.number());
#else
        return std::nullopt;
#endif
    }

    /// Starts reading the file from disk, as far as the system chooses; returns at once.
    void read_ahead() const noexcept {
#if KVCACHE_POSIX
        if (begin_ != nullptr)
            ::madvise(begin_, size_, MADV_WILLNEED);
#endif
    }

    /// Drops whole pages from this process's memory. Requires: the range is a part of the file, in whole system pages.
    void forget([[maybe_unused]] std::size_t first, [[maybe_unused]] std::size_t past) const noexcept {
#if KVCACHE_POSIX
        ::madvise(begin_ + first, past - first, MADV_DONTNEED);
#elif KVCACHE_WINDOWS
        ::VirtualUnlock(begin_ + first, past - first); // of pages that are not locked: out of the working set
#endif
    }

private:
#if KVCACHE_POSIX
    KVCACHE_LAZY [[nodiscard]] std::byte* map(std::size_t size) const noexcept {
        void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_.number(), 0);
        return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    }
#elif KVCACHE_WINDOWS
    KVCACHE_LAZY [[nodiscard]] std::byte* map(std::size_t) const noexcept {
        constexpr unsigned long read_only = 2, view_to_read = 4;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): what the C library returns for a handle
        auto* const handle = reinterpret_cast<void*>(::_get_osfhandle(file_.number()));
        void* const mapping = ::CreateFileMappingW(handle, nullptr, read_only, 0, 0, nullptr);
        void* const at = mapping == nullptr ? nullptr : ::MapViewOfFile(mapping, view_to_read, 0, 0, 0);
        if (mapping != nullptr)
            ::CloseHandle(mapping); // the view keeps it
        if (at == nullptr)
            errno = EIO;
        return static_cast<std::byte*>(at);
    }
#endif
    void swap(file_bytes& other) noexcept {
        std::swap(file_, other.file_);
        std::swap(begin_, other.begin_);
        std::swap(size_, other.size_);
    }

    descriptor file_;
    std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

/// A new file that is written from its beginning. Each member returns zero or an errno.
class new_file {
public:
    new_file() = default;
    new_file(const new_file&) = delete;
    new_file& operator=(const new_file&) = delete;
#if KVCACHE_POSIX || KVCACHE_WINDOWS
    /// Creates the file, which must not exist.
    KVCACHE_LAZY [[nodiscard]] int create(const std::filesystem::path& file) {
#if KVCACHE_POSIX
        file_ = descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
#else
        constexpr int flags = _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT;
        file_ = descriptor(::_wopen(file.c_str(), flags, _S_IREAD | _S_IWRITE));
#endif
        return file_ ? 0 : errno;
    }
    /// Appends all bytes.
    KVCACHE_LAZY [[nodiscard]] int write(std::span<const std::byte> bytes) noexcept {
        constexpr std::size_t most = std::size_t{1} << 30; // a single call takes 2 GiB at most
        while (!bytes.empty()) {
#if KVCACHE_POSIX
            const auto written = ::write(file_.number(), bytes.data(), std::min(most, bytes.size()));
#else
            const auto written =
                ::_write(file_.number(), bytes.data(), static_cast<unsigned>(std::min(most, bytes.size())));
#endif
            if (written < 0 && errno != EINTR)
                return errno;
            if (written > 0)
                bytes = bytes.subspan(static_cast<std::size_t>(written));
        }
        return 0;
    }
    /// Waits until the bytes are on the disk.
    [[nodiscard]] int sync() noexcept {
#if KVCACHE_POSIX
        return ::fsync(file_.number()) == 0 ? 0 : errno;
#else
        return ::_commit(file_.number()) == 0 ? 0 : errno;
#endif
    }

private:
    descriptor file_;
#else
    [[nodiscard]] int create(const std::filesystem::path& file) {
        file_ = std::fopen(file.c_str(), "wbx");
        return file_ != nullptr ? 0 : errno;
    }
    [[nodiscard]] int write(std::span<const std::byte> bytes) noexcept {
        return std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size() ? 0 : EIO;
    }
    [[nodiscard]] int sync() noexcept {
        return std::fflush(file_) == 0 ? 0 : errno;
    }
    ~new_file() {
        if (file_ != nullptr)
            std::fclose(file_);
    }

private:
    std::FILE* file_ = nullptr;
#endif
};

/// Waits until the names in a directory are on the disk. If the system has no such thing, a crash may undo a rename.
KVCACHE_LAZY inline void sync_directory([[maybe_unused]] const std::filesystem::path& directory) noexcept {
#if KVCACHE_POSIX
    const descriptor folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder)
        static_cast<void>(::fsync(folder.number()));
#endif
}

#if KVCACHE_POSIX

/// A file of its process alone that grows and is mapped as far as it reaches, at addresses that stay.
class growing_file {
public:
    /// Creates `file`, which must not exist and is readable for its owner alone; an empty path becomes a new name in
    /// the temporary directory.
    [[nodiscard]] refusal create(std::filesystem::path& file, bool unlink) {
        if (file.empty()) {
            std::error_code none;
            const auto folder = std::filesystem::temp_directory_path(none);
            std::string name = ((none ? std::filesystem::path("/tmp") : folder) / "kvcache-XXXXXX").string();
            file_ = descriptor(::mkstemp(name.data()));
            file = std::move(name);
        } else {
            file_ = descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        }
        if (!file_)
            return {"cannot be created", errno};
        return unlink && ::unlink(file.c_str()) != 0 ? refusal{"cannot be unlinked", errno} : refusal{};
    }

    /// Reserves the addresses for `bytes`, whole system pages.
    [[nodiscard]] refusal reserve(std::size_t bytes) noexcept {
        memory_ = address_range::map(bytes, backing::nothing);
        return memory_.empty() ? refusal{"cannot be given addresses", errno} : refusal{};
    }

    /// The addresses; of these the first `size()` bytes can be accessed.
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return memory_.bytes(); }
    [[nodiscard]] std::size_t size() const noexcept { return memory_.empty() ? 0 : size_; }

    /// Grows the file and its mapping. Disk space is allocated first: otherwise a write would kill the process on a
    /// full disk (SIGBUS). Requires: `size` is more than now, whole system pages, and within the addresses.
    [[nodiscard]] refusal grow(std::size_t size) noexcept {
        const auto at = static_cast<::off_t>(size_), more = static_cast<::off_t>(size - size_);
        if (const int why = allocate(at, more); why != 0)
            return {"cannot grow", why};
        if (::mmap(memory_.bytes().data() + size_, size - size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   file_.number(), at) == MAP_FAILED)
            return {"cannot be mapped", errno};
        size_ = size;
        return {};
    }

private:
    [[nodiscard]] int allocate(::off_t at, ::off_t more) const noexcept {
#if defined(__APPLE__) // has no posix_fallocate
        ::fstore_t wanted = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, more, 0};
        return ::fcntl(file_.number(), F_PREALLOCATE, &wanted) == -1 || ::ftruncate(file_.number(), at + more) != 0
                   ? errno
                   : 0;
#else
        return ::posix_fallocate(file_.number(), at, more);
#endif
    }

    descriptor file_;
    address_range memory_;
    std::size_t size_ = 0;
};

#endif

}}} // namespace kvcache::platform
