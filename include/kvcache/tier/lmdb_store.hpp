// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/file_lock.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/lmdb_check.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
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

#include <lmdb.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// When a commit reaches the disk. A killed process loses no commit under any of them.
enum class sync_policy : unsigned {
    /// Before the next commit: a power failure loses no committed record.
    every_commit = 0,
    /// A power failure may lose the last commit; the store stays consistent.
    all_but_last = MDB_NOMETASYNC,
    /// Whenever the system writes: it may corrupt a store whose writes are reordered.
    by_the_system = MDB_NOSYNC,
};

/// The files of an LMDB environment, examined before LMDB opens them. While an object lives, no other process examines
/// or opens the directory by this class.
class lmdb_files {
public:
    explicit lmdb_files(const std::filesystem::path& directory) : directory_(directory) {}
    lmdb_files(const lmdb_files&) = delete;
    lmdb_files& operator=(const lmdb_files&) = delete;

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
            const auto type = std::filesystem::symlink_status(directory_ / name, reason).type();
            if (type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found)
                return failure(name, directory_ / name, "is not a regular file, and is not opened; remove it");
        }
        if (auto alone = lock(); !alone)
            return alone.error();
        if (auto examined = prepare_lock_file(); !examined || *examined)
            return examined ? result(std::optional<error>()) : examined.error();
        const std::filesystem::path data = directory_ / "data.mdb";
        const auto file = platform::open_no_link(data, platform::access::read);
        if (!file)
            return errno == ENOENT
                       ? result(std::optional<error>())
                       : failure("data.mdb", data,
                                 std::string("cannot be opened: ") + std::generic_category().message(errno));
        const auto sound = lmdb_check::run(file, tables);
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
        const auto refused = platform::lock_directory(directory_, std::chrono::seconds(30), lock_);
        if (refused.what != nullptr)
            return failure("directory", directory_,
                           std::string(refused.what) + ": " + std::generic_category().message(refused.reason));
        return {};
    }

    // Returns whether a process has the environment open: it then holds LMDB's lock on the first byte of lock.mdb.
    // If not, allocates the file, because LMDB maps it, and a write to a page without a block kills the process.
    [[nodiscard]] result<bool> prepare_lock_file() const {
        const auto file = platform::open_no_link(directory_ / "lock.mdb", platform::access::create);
        if (!file)
            return failure("lock.mdb", directory_ / "lock.mdb",
                           std::string("cannot be opened: ") + std::generic_category().message(errno));
        const bool in_use = platform::first_byte_locked(file);
        if (const int code = in_use ? 0 : platform::allocate(file, lock_bytes); code != 0)
            return failure("lmdb", directory_ / "lock.mdb",
                           std::string("cannot be written: ") + std::generic_category().message(code));
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

    static constexpr std::size_t lock_bytes = 32768; // for 510 readers

    std::filesystem::path directory_;
    platform::descriptor lock_;
};

/// An LMDB environment with the tables of a tier:
///
///     records   name -> the record
///     places    name -> its place in the order
///     order     place -> name, bytes, cost, depth; the last used comes last
///     books     "format", "bytes" of all records, "end" of the order, "erased": records ever removed
///
/// Integers are little-endian; places are big-endian so that they sort. A process opens a path once, because LMDB's
/// locks belong to the process.
class lmdb_store {
public:
    /// The place of a record in the order, and its metadata.
    struct listed {
        std::uint64_t place = 0;
        std::size_t bytes = 0;
        tier_entry entry = {};
    };

    lmdb_store() = default;
    lmdb_store(const lmdb_store&) = delete;
    lmdb_store& operator=(const lmdb_store&) = delete;
    ~lmdb_store() {
        // LMDB frees its slots in lock.mdb when it closes; a lost page of that would kill the process, a leak does not.
        const bool lost = lock_file_ && is_shorter(lock_file_.number(), lock_bytes_);
        if (env_ != nullptr && !lost)
            ::mdb_env_close(env_);
    }

    /// Opens the store in a directory, and creates it if absent. A damaged store is renamed, and an empty one takes its
    /// place; damage() then says so. Errors: those of lmdb_files; io, with LMDB's message; unsupported, for a store of
    /// another format.
    [[nodiscard]] result<void> open(const std::filesystem::path& directory, std::size_t map_bytes, sync_policy sync) {
        lmdb_files files(directory);
        const auto examined = files.examine(layout);
        if (!examined)
            return examined.error();
        damage_ = *examined;
        if (int code = ::mdb_env_create(&env_); code != 0)
            return failure(code);
        ::mdb_env_set_maxdbs(env_, 4);
        ::mdb_env_set_maxreaders(env_, 510);
        ::mdb_env_set_mapsize(env_, (map_bytes + 4095) / 4096 * 4096);
        const auto flags = static_cast<unsigned>(sync) | MDB_NOTLS;
        if (const int code = ::mdb_env_open(env_, directory.c_str(), flags, 0600); code != 0)
            return failure(code);
        if (auto kept = keep_files(directory); !kept)
            return kept;
        int dead = 0;
        ::mdb_reader_check(env_, &dead); // frees the slots of killed readers
        // An existing store needs no write, for which a full disk has no room.
        for (const unsigned creates : {0u, unsigned{MDB_CREATE}}) {
            transaction view(*this, creates != 0 ? 0 : MDB_RDONLY);
            int code = view ? view.open_tables(creates) : view.code();
            if (code == MDB_NOTFOUND && creates == 0)
                continue;
            if (code != 0)
                return failure(code);
            if (const auto found = view.number("format").value_or(store_format); found != store_format)
                return error{error_code::unsupported, "format",
                             directory.string() + " is a store of format " + std::to_string(found)};
            code = creates != 0 ? view.set_number("format", store_format) : 0;
            code = code == 0 ? view.commit() : code;
            return code == 0 ? result<void>() : failure(code);
        }
        return {};
    }

    /// Returns how the store was damaged, and its new name, if open() set it aside.
    [[nodiscard]] const std::optional<error>& damage() const noexcept { return damage_; }

    /// A transaction, aborted at the end of its scope unless it was committed.
    class transaction {
    public:
        transaction(lmdb_store& store, unsigned flags) : store_(store) {
            code_ = (flags & MDB_RDONLY) != 0 ? store.unreadable() : store.unwritable();
            code_ = code_ == 0 ? ::mdb_txn_begin(store.env_, nullptr, flags, &txn_) : code_;
            if (code_ != 0)
                txn_ = nullptr;
        }
        transaction(const transaction&) = delete;
        transaction& operator=(const transaction&) = delete;
        ~transaction() {
            if (txn_ != nullptr)
                ::mdb_txn_abort(txn_);
        }

        [[nodiscard]] explicit operator bool() const noexcept { return txn_ != nullptr; }
        [[nodiscard]] int code() const noexcept { return code_; }
        [[nodiscard]] MDB_txn* get() const noexcept { return txn_; }
        [[nodiscard]] int commit() { return ::mdb_txn_commit(std::exchange(txn_, nullptr)); }

        /// Opens the tables for all later transactions. Returns LMDB's code.
        [[nodiscard]] int open_tables(unsigned flags) {
            MDB_dbi* const tables[] = {&store_.records_, &store_.places_, &store_.order_, &store_.books_};
            int code = 0;
            for (std::size_t i = 0; i < 4 && code == 0; ++i)
                code = ::mdb_dbi_open(txn_, layout[i].name.data(), flags, tables[i]);
            return code;
        }

        /// Finds a record by name, in place in the memory map; it is valid until the transaction ends.
        [[nodiscard]] int find(const sha256_digest& name, std::span<const std::byte>& record) const {
            return look(store_.records_, name.bytes, record);
        }
        /// Returns the place of a record in the order.
        [[nodiscard]] std::optional<std::uint64_t> place_of(const sha256_digest& name) const {
            std::span<const std::byte> found;
            if (look(store_.places_, name.bytes, found) != 0 || found.size() != 8)
                return std::nullopt;
            return load_little<std::uint64_t>(found, 0);
        }

        /// Returns the first entry at a place or after it; none at the end.
        [[nodiscard]] std::optional<listed> listed_from(std::uint64_t place) const {
            MDB_cursor* raw = nullptr;
            if (::mdb_cursor_open(txn_, store_.order_, &raw) != 0)
                return std::nullopt;
            auto key = sorted(place);
            MDB_val at{key.size(), key.data()}, found{};
            const int code = ::mdb_cursor_get(raw, &at, &found, MDB_SET_RANGE);
            ::mdb_cursor_close(raw);
            if (code != 0 || at.mv_size != 8 || found.mv_size != listed_bytes)
                return std::nullopt;
            const std::span bytes(static_cast<const std::byte*>(found.mv_data), found.mv_size);
            listed made{.place = unsorted(at), .bytes = load_little<std::uint64_t>(bytes, 32)};
            ranges::copy(bytes.first(32), made.entry.name.bytes.begin());
            made.entry.cost = bit_cast<double>(load_little<std::uint64_t>(bytes, 40));
            made.entry.depth = load_little<std::uint32_t>(bytes, 48);
            return made;
        }

        /// Returns the place after the last one ever used.
        [[nodiscard]] std::uint64_t end() const { return number("end").value_or(1); }

        /// Adds a record at the end of the order. Returns LMDB's code.
        [[nodiscard]] int add(const tier_entry& entry, std::span<const std::byte> record, std::size_t weight) {
            int code = put(store_.records_, entry.name.bytes, record);
            if (code == 0)
                code = list({end(), weight, entry});
            return code != 0 ? code : set_number("bytes", number("bytes").value_or(0) + weight);
        }
        /// Moves a record to the end of the order, if it is present.
        [[nodiscard]] int touch(const sha256_digest& name) {
            const auto place = place_of(name);
            auto found = place ? listed_from(*place) : std::nullopt;
            if (!found || found->entry.name != name)
                return 0;
            if (const int code = drop(store_.order_, sorted(*place)); code != 0)
                return code;
            found->place = end();
            return list(*found);
        }
        /// Removes a record, if it is present.
        [[nodiscard]] int erase(const sha256_digest& name) {
            const auto place = place_of(name);
            if (!place)
                return 0;
            const auto found = listed_from(*place);
            for (const int code : {drop(store_.order_, sorted(*place)), drop(store_.places_, name.bytes),
                                   drop(store_.records_, name.bytes)})
                if (code != 0 && code != MDB_NOTFOUND)
                    return code;
            const std::uint64_t all = number("bytes").value_or(0), own = found ? found->bytes : 0;
            if (const int code = set_number("bytes", all - std::min(all, own)); code != 0)
                return code;
            return set_number("erased", number("erased").value_or(0) + 1);
        }

        [[nodiscard]] std::optional<std::uint64_t> number(std::string_view name) const {
            std::span<const std::byte> found;
            if (look(store_.books_, text_bytes(name), found) != 0 || found.size() != 8)
                return std::nullopt;
            return load_little<std::uint64_t>(found, 0);
        }
        [[nodiscard]] int set_number(std::string_view name, std::uint64_t n) {
            std::array<std::byte, 8> little;
            store_little(little, 0, n);
            return put(store_.books_, text_bytes(name), little);
        }
        [[nodiscard]] std::size_t records() const {
            MDB_stat all{};
            return ::mdb_stat(txn_, store_.records_, &all) == 0 ? all.ms_entries : 0;
        }

    private:
        static constexpr std::size_t listed_bytes = 52;

        [[nodiscard]] static MDB_val value(std::span<const std::byte> bytes) {
            return {bytes.size(), const_cast<std::byte*>(bytes.data())};
        }
        [[nodiscard]] int look(MDB_dbi table, std::span<const std::byte> name, std::span<const std::byte>& to) const {
            MDB_val key = value(name), found{};
            const int code = ::mdb_get(txn_, table, &key, &found);
            if (code == 0)
                to = {static_cast<const std::byte*>(found.mv_data), found.mv_size};
            return code;
        }
        [[nodiscard]] int put(MDB_dbi table, std::span<const std::byte> name, std::span<const std::byte> bytes) {
            MDB_val key = value(name), data = value(bytes);
            return ::mdb_put(txn_, table, &key, &data, 0);
        }
        [[nodiscard]] int drop(MDB_dbi table, std::span<const std::byte> name) {
            MDB_val key = value(name);
            return ::mdb_del(txn_, table, &key, nullptr);
        }
        [[nodiscard]] int list(const listed& one) {
            std::array<std::byte, listed_bytes> bytes;
            ranges::copy(one.entry.name.bytes, bytes.begin());
            store_little<std::uint64_t>(bytes, 32, one.bytes);
            store_little(bytes, 40, bit_cast<std::uint64_t>(one.entry.cost));
            store_little(bytes, 48, one.entry.depth);
            if (const int code = put(store_.order_, sorted(one.place), bytes); code != 0)
                return code;
            std::array<std::byte, 8> place;
            store_little(place, 0, one.place);
            if (const int code = put(store_.places_, one.entry.name.bytes, place); code != 0)
                return code;
            return set_number("end", one.place + 1);
        }
        [[nodiscard]] static std::array<std::byte, 8> sorted(std::uint64_t place) {
            std::array<std::byte, 8> big;
            store_little(big, 0, place);
            ranges::reverse(big);
            return big;
        }
        [[nodiscard]] static std::uint64_t unsorted(const MDB_val& key) {
            std::uint64_t place = 0;
            for (std::size_t i = 0; i < 8; ++i)
                place = place << 8 | static_cast<const unsigned char*>(key.mv_data)[i];
            return place;
        }

        lmdb_store& store_;
        MDB_txn* txn_ = nullptr;
        int code_ = 0;
    };

    /// Adopts the map size after another process has enlarged it. Requires: no transaction is open.
    void follow_size() noexcept {
        if (env_ != nullptr)
            ::mdb_env_set_mapsize(env_, 0);
    }

    /// Returns why nothing can be written now; zero if nothing is known. Requires: the store is open.
    [[nodiscard]] int unwritable() {
        const int code = unreadable();
        int file = -1;
        if (code != 0 || ::mdb_env_get_fd(env_, &file) != 0)
            return code;
        return platform::names_other_file(data_, file) ? gone : 0;
    }

    [[nodiscard]] static error failure(int code) {
        return {error_code::io, "lmdb",
                code == truncated  ? "data.mdb was truncated while it was open"
                : code == unlocked ? "lock.mdb was truncated while it was open"
                : code == gone     ? "data.mdb was removed or renamed while it was open; records would be lost"
                                   : ::mdb_strerror(code)};
    }

private:
    static constexpr std::uint64_t store_format = 1;
    static constexpr int truncated = -1, unlocked = -2, gone = -3; // codes that LMDB does not use
    static constexpr lmdb_table layout[] = {{"records", 32}, {"places", 32, 8}, {"order", 8, 52}, {"books", 0, 8}};

    // Remembers the files that LMDB has opened. lock.mdb is opened a second time, because LMDB does not return its
    // descriptor; closing this one before the environment would drop LMDB's locks.
    [[nodiscard]] result<void> keep_files(const std::filesystem::path& directory) {
        std::error_code reason;
        data_ = std::filesystem::absolute(directory, reason) / "data.mdb";
        lock_file_ = platform::open_no_link(directory / "lock.mdb", platform::access::read);
        const auto status = lock_file_ ? platform::status_of(lock_file_.number()) : std::nullopt;
        if (reason || !status)
            return failure(reason ? reason.value() : errno);
        lock_bytes_ = status->size; // which LMDB has mapped
        return {};
    }

    [[nodiscard]] static bool is_shorter(int file, std::uint64_t bytes) noexcept {
        const auto status = platform::status_of(file);
        return !status || status->size < bytes;
    }

    // Returns why the store cannot be read. LMDB never shortens its files, and an access to a lost page kills the
    // process. This sees a loss before a transaction.
    [[nodiscard]] int unreadable() noexcept {
        if (is_shorter(lock_file_.number(), lock_bytes_))
            return unlocked;
        int file = -1;
        if (::mdb_env_get_fd(env_, &file) != 0)
            return truncated;
        const auto status = platform::status_of(file);
        if (!status)
            return truncated;
        auto longest = longest_.load();
        while (longest < status->size && !longest_.compare_exchange_weak(longest, status->size)) {
        }
        return status->size < longest ? truncated : 0;
    }

    MDB_env* env_ = nullptr;
    MDB_dbi records_ = 0, places_ = 0, order_ = 0, books_ = 0;
    std::optional<error> damage_;
    std::atomic<std::uint64_t> longest_{0}; // of data.mdb, in bytes
    std::filesystem::path data_;            // of data.mdb, absolute
    platform::descriptor lock_file_;        // outlives env_
    std::uint64_t lock_bytes_ = 0;
};

}}} // namespace kvcache::tier
