// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/sha256_digest.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/lmdb_store.hpp>
#include <kvcache/tier/record_eviction.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include <lmdb.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// A write to a store: a record to add, or a name to erase.
struct lmdb_job {
    tier_entry entry = {};
    std::vector<std::byte> record = {};
    bool leaves = false;
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
            counts = {.dropped = static_cast<std::uint64_t>(std::ranges::count(jobs, false, &lmdb_job::leaves))};
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
            if (const int code = one.leaves ? leave(changes, one.entry.name, false) : add(changes, one, done);
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
                ranks_.leave(name, false);
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

    [[nodiscard]] int leave(transaction& changes, const sha256_digest& name, bool as_victim) {
        ranks_.leave(name, as_victim);
        return changes.erase(name);
    }

    [[nodiscard]] int make_room(transaction& changes, const tier_entry& newcomer, std::size_t bytes,
                                tier_counts& done) {
        while (const auto victim = ranks_.victim_for(newcomer, bytes)) {
            if (const int code = leave(changes, *victim, true); code != 0)
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

}}} // namespace kvcache::tier
