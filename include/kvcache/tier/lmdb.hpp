// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/lmdb_store.hpp>
#include <kvcache/tier/record_eviction.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <lmdb.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// A write to a store: a record to add, or a name to erase.
struct lmdb_job {
    tier_entry entry = {};
    std::vector<std::byte> record = {};
    bool erases = false;
};

/// Returns the disk space of a record: its bytes and a 16-byte header, in whole 4 KiB pages.
[[nodiscard]] constexpr std::size_t lmdb_weight(std::size_t bytes) noexcept {
    return (bytes + 16 + 4095) / 4096 * 4096;
}

/// The eviction order of a store that several processes share, as one process knows it.
template <eviction_policy Eviction>
class lmdb_eviction {
public:
    lmdb_eviction(Eviction eviction, std::size_t records, std::size_t bytes)
        : eviction_(eviction), most_records_(records), most_bytes_(bytes), ranks_(eviction, records, bytes) {}

    /// Applies a batch in one transaction, in full or not at all, and counts the results. Returns LMDB's code.
    [[nodiscard]] int write(lmdb_store& store, std::span<const lmdb_job> jobs, std::span<const sha256_digest> touched,
                            tier_counts& counts) {
        tier_counts done;
        int code = 0;
        try {
            code = write_once(store, jobs, touched, done);
        } catch (const std::bad_alloc&) {
            code = ENOMEM;
        }
        if (code == 0) {
            counts = done;
        } else { // the order in memory is ahead of the store
            ranks_ = record_eviction<Eviction>(eviction_, most_records_, most_bytes_);
            known_ = 0;
            counts = {.dropped = static_cast<std::uint64_t>(ranges::count(jobs, false, &lmdb_job::erases))};
        }
        return code;
    }

private:
    using transaction = lmdb_store::transaction;

    [[nodiscard]] int write_once(lmdb_store& store, std::span<const lmdb_job> jobs,
                                 std::span<const sha256_digest> touched, tier_counts& done) {
        transaction changes(store, 0);
        if (!changes)
            return changes.code();
        if (const int code = catch_up(changes, done); code != 0)
            return code;
        for (const sha256_digest& name : touched) {
            ranks_.touch(name);
            if (const int code = changes.touch(name); code != 0)
                return code;
        }
        for (const lmdb_job& one : jobs)
            if (const int code = one.erases ? remove(changes, one.entry.name, false) : add(changes, one, done);
                code != 0)
                return code;
        const std::uint64_t end = changes.end(), erased = changes.number("erased").value_or(0);
        const int code = changes.commit();
        if (code == 0) {
            known_ = end;
            erased_ = erased;
        }
        return code;
    }

    // Applies the changes that other processes, or an earlier process, made to the store.
    [[nodiscard]] int catch_up(transaction& changes, tier_counts& done) {
        if (erased_ != changes.number("erased").value_or(0)) {
            std::vector<sha256_digest> gone;
            ranks_.for_each([&](const sha256_digest& name) {
                if (!changes.place_of(name))
                    gone.push_back(name);
            });
            for (const sha256_digest& name : gone)
                ranks_.remove(name, false);
        }
        const std::uint64_t end = changes.end();
        for (auto next = changes.listed_from(known_); next && next->place < end;
             next = changes.listed_from(next->place + 1)) {
            if (ranks_.contains(next->entry.name)) {
                ranks_.touch(next->entry.name);
                continue;
            }
            if (!ranks_.fits(next->bytes)) { // written by a process with larger limits
                if (const int code = changes.erase(next->entry.name); code != 0)
                    return code;
                continue;
            }
            if (const int code = make_room(changes, next->entry, next->bytes, done); code != 0)
                return code;
            ranks_.admit(next->entry, next->bytes);
        }
        return 0;
    }

    [[nodiscard]] int remove(transaction& changes, const sha256_digest& name, bool as_victim) {
        ranks_.remove(name, as_victim);
        return changes.erase(name);
    }

    [[nodiscard]] int make_room(transaction& changes, const tier_entry& newcomer, std::size_t bytes,
                                tier_counts& done) {
        while (const auto victim = ranks_.victim_for(newcomer, bytes)) {
            if (const int code = remove(changes, *victim, true); code != 0)
                return code;
            ++done.evicted;
        }
        return 0;
    }

    [[nodiscard]] int add(transaction& changes, const lmdb_job& one, tier_counts& done) {
        const std::size_t bytes = lmdb_weight(one.record.size());
        if (!ranks_.fits(bytes) || changes.place_of(one.entry.name))
            return ++done.dropped, 0;
        if (const int code = make_room(changes, one.entry, bytes, done); code != 0)
            return code;
        if (const int code = changes.add(one.entry, one.record, bytes); code != 0)
            return code;
        ranks_.admit(one.entry, bytes);
        ++done.written;
        done.bytes_written += one.record.size();
        return 0;
    }

    Eviction eviction_;
    std::size_t most_records_, most_bytes_;
    record_eviction<Eviction> ranks_;
    std::uint64_t known_ = 0;             // changes before this place are known
    std::optional<std::uint64_t> erased_; // value of the store's "erased" counter then
};

/// Records on disk, in an LMDB store (Chu, "MDB", LDAPCon 2011). They are read in place from its memory map and written
/// in batches by a background thread. A killed process leaves a consistent store. Processes may share it, each within
/// its own limits. The order of use is stored too, for the next start. A process opens a directory once.
template <eviction_policy Eviction = eviction::lru>
struct lmdb {
    using role = tier_role;
    std::filesystem::path directory = {};             ///< Directory of the store, created if absent.
    std::size_t bytes = std::size_t{1} << 30;         ///< Maximum bytes of all records, in whole disk pages.
    std::size_t records = std::size_t{1} << 16;       ///< Maximum number of records.
    std::size_t queue_bytes = std::size_t{256} << 20; ///< Limit of the write queue; more records are dropped.
    sync_policy sync = sync_policy::all_but_last;     ///< When a commit reaches the disk.
    std::chrono::milliseconds gather{200};            ///< How long touches are gathered before they are written.
    std::size_t parallel_reads = 2;                   ///< Threads that read one long prompt.
    Eviction eviction = {};                           ///< Selects the record to evict when room is needed.

    class state {
    public:
        explicit state(const lmdb& how) : parallel_reads_(how.parallel_reads), work_(std::make_unique<work>(how)) {}

        template <class Use>
        [[nodiscard]] result<bool> read(const sha256_digest& name, Use&& use) {
            return work_->read(name, use);
        }
        [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
            return work_->put(entry, pieces);
        }
        [[nodiscard]] bool contains(const sha256_digest& name) { return work_->contains(name); }
        /// Whether each of these is stored: one transaction.
        [[nodiscard]] std::vector<bool> present(std::span<const sha256_digest> names) { return work_->present(names); }
        [[nodiscard]] result<void> erase(const sha256_digest& name) { return work_->erase(name); }
        [[nodiscard]] result<void> flush() { return work_->flush(); }
        [[nodiscard]] result<void> status() const { return work_->status(); }
        [[nodiscard]] tier_counts counts() const { return work_->counts(); }
        [[nodiscard]] std::size_t parallel_reads() const noexcept { return parallel_reads_; }
        /// Returns how the store that was in the directory is damaged, and the name it has now; none if it was sound.
        [[nodiscard]] const std::optional<error>& damage() const noexcept { return work_->damage(); }

    private:
        class work;
        std::size_t parallel_reads_;
        std::unique_ptr<work> work_;
    };

    [[nodiscard]] state open() const { return state(*this); }
};

/// The store, its write queue and the writer thread.
template <eviction_policy Eviction>
class lmdb<Eviction>::state::work {
public:
    explicit work(const lmdb& how) : how_(how), ranks_(how.eviction, how.records, how.bytes) {
        // Pages freed in a transaction are reusable only after it, and free pages are not always contiguous.
        status_ = store_.open(how.directory, 2 * how.bytes + 2 * how.queue_bytes + (std::size_t{16} << 20), how.sync);
        if (status_)
            writer_ = std::thread([this] { run(); });
    }
    ~work() {
        {
            const std::lock_guard guard(lock_);
            stop_ = true;
        }
        wake_.notify_all();
        if (writer_.joinable())
            writer_.join(); // writes the queue first
    }

    template <class Use>
    [[nodiscard]] result<bool> read(const sha256_digest& name, Use& use) {
        if (!status_)
            return count_failure(status_.error());
        const auto found = in_store([&](auto& view) -> int {
            std::span<const std::byte> record;
            const int code = view.find(name, record);
            if (code == 0)
                use(record);
            return code;
        });
        const std::lock_guard guard(lock_);
        if (found == MDB_NOTFOUND)
            return ++counts_.misses, false;
        if (found != 0)
            return ++counts_.failures, lmdb_store::failure(found);
        ++counts_.hits;
        if (touched_.size() < 4096)
            touched_.push_back(name);
        return true;
    }

    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        if (!status_)
            return count_failure(status_.error());
        const std::size_t size = total_bytes(pieces);
        {
            const std::lock_guard guard(lock_);
            if (queued_bytes_ + size > how_.queue_bytes || lmdb_weight(size) > how_.bytes)
                return ++counts_.dropped, result<void>();
            queued_bytes_ += size;
        }
        try {
            return enqueue({entry, joined(pieces), false});
        } catch (const std::bad_alloc&) {
            const std::lock_guard guard(lock_);
            queued_bytes_ -= size;
            return ++counts_.failures, error{error_code::out_of_memory, "lmdb", "there is no memory for a record"};
        }
    }

    [[nodiscard]] bool contains(const sha256_digest& name) {
        const std::lock_guard guard(lock_);
        return status_ && ranges::count(erasing_, name) == 0 && store_.unwritable() == 0 &&
               in_store([&](auto& view) { return view.place_of(name) ? 0 : MDB_NOTFOUND; }) == 0;
    }
    [[nodiscard]] std::vector<bool> present(std::span<const sha256_digest> names) {
        std::vector<bool> there(names.size());
        const std::lock_guard guard(lock_);
        if (status_ && store_.unwritable() == 0)
            (void)in_store([&](auto& view) {
                for (std::size_t i = 0; i < names.size(); ++i)
                    there[i] = view.place_of(names[i]) && ranges::count(erasing_, names[i]) == 0;
                return 0;
            });
        return there;
    }
    [[nodiscard]] result<void> erase(const sha256_digest& name) {
        if (!status_)
            return status_;
        return enqueue({{.name = name}, {}, true});
    }
    [[nodiscard]] result<void> flush() {
        if (!status_)
            return status_;
        std::unique_lock guard(lock_);
        flush_ = true;
        wake_.notify_all();
        idle_.wait(guard, [this] { return queue_.empty() && touched_.empty() && !busy_; });
        flush_ = false;
        return std::exchange(last_, {});
    }
    [[nodiscard]] result<void> status() {
        const int code = status_ ? store_.unwritable() : 0;
        return code == 0 ? status_ : lmdb_store::failure(code);
    }
    [[nodiscard]] const std::optional<error>& damage() const noexcept { return store_.damage(); }
    [[nodiscard]] tier_counts counts() {
        tier_counts now;
        {
            const std::lock_guard guard(lock_);
            now = counts_;
        }
        if (status_)
            (void)in_store([&](auto& view) {
                now.records = view.records();
                now.bytes = view.number("bytes").value_or(0);
                return 0;
            });
        return now;
    }

private:
    [[nodiscard]] error count_failure(error what) {
        const std::lock_guard guard(lock_);
        ++counts_.failures;
        return what;
    }

    // Runs `look` in a read transaction. Returns LMDB's code.
    template <class Look>
    [[nodiscard]] int in_store(Look&& look) {
        for (bool again : {true, false}) {
            {
                const std::shared_lock guard(map_);
                typename lmdb_store::transaction view(store_, MDB_RDONLY);
                if (view)
                    return look(view);
                if (view.code() != MDB_MAP_RESIZED || !again)
                    return view.code();
            }
            const std::unique_lock guard(map_);
            store_.follow_size();
        }
        return MDB_MAP_RESIZED;
    }

    [[nodiscard]] result<void> enqueue(lmdb_job one) {
        {
            const std::lock_guard guard(lock_);
            if (one.erases)
                erasing_.push_back(one.entry.name);
            queue_.push_back(std::move(one));
        }
        wake_.notify_all();
        return {};
    }

    void run() {
        std::unique_lock guard(lock_);
        for (;;) {
            const auto due = [this] { return stop_ || flush_ || !queue_.empty(); };
            if (touched_.empty())
                wake_.wait(guard, [&] { return due() || !touched_.empty(); });
            else
                wake_.wait_for(guard, how_.gather, due);
            if (queue_.empty() && touched_.empty()) {
                idle_.notify_all();
                if (stop_)
                    return;
                flush_ = false;
                continue;
            }
            std::vector<lmdb_job> jobs = std::exchange(queue_, {});
            std::vector<sha256_digest> touched = std::exchange(touched_, {});
            busy_ = true;
            guard.unlock();
            const int code = write(jobs, touched);
            guard.lock();
            busy_ = false;
            for (const lmdb_job& one : jobs)
                queued_bytes_ -= one.record.size();
            if (queue_.empty())
                erasing_.clear();
            if (code != 0) { // one failure for each record that is lost, or one
                const auto lost = ranges::count(jobs, false, &lmdb_job::erases);
                counts_.failures += static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(lost, 1));
                last_ = lmdb_store::failure(code);
            }
            idle_.notify_all();
        }
    }

    // Applies a batch in full or not at all. Returns LMDB's code.
    [[nodiscard]] int write(std::span<const lmdb_job> jobs, std::span<const sha256_digest> touched) {
        tier_counts done;
        int code = MDB_MAP_RESIZED;
        for (int tries = 0; code == MDB_MAP_RESIZED && tries < 2; ++tries) {
            {
                const std::shared_lock guard(map_);
                code = ranks_.write(store_, jobs, touched, done);
            }
            if (code == MDB_MAP_RESIZED) {
                const std::unique_lock guard(map_);
                store_.follow_size();
            }
        }
        const std::lock_guard guard(lock_);
        counts_.written += done.written;
        counts_.bytes_written += done.bytes_written;
        counts_.evicted += done.evicted;
        counts_.dropped += done.dropped;
        return code;
    }

    const lmdb how_;
    lmdb_store store_;
    result<void> status_;
    std::shared_mutex map_; // exclusive: the map is resized

    std::mutex lock_; // guards the members below
    std::condition_variable wake_, idle_;
    std::vector<lmdb_job> queue_;
    std::vector<sha256_digest> touched_, erasing_; // erasing_: records to be erased, which contains() reports as absent
    std::size_t queued_bytes_ = 0;
    bool stop_ = false, flush_ = false, busy_ = false;
    result<void> last_;
    tier_counts counts_;

    // Used only by the writer thread.
    lmdb_eviction<Eviction> ranks_;
    std::thread writer_;
};

static_assert(tier_policy<lmdb<>>);

}}} // namespace kvcache::tier
