// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/memory.hpp>
#include <kvcache/tier/record_eviction.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// The records to be copied later from one tier to a second one, and the thread that copies them.
template <tier_state First, tier_state Second>
class chain_copies {
public:
    /// At most `capacity` records wait, each for `delay` before it is copied. With capacity 0 there is no thread, and
    /// nothing is copied.
    chain_copies(First& first, Second& second, std::size_t capacity, std::chrono::milliseconds delay, bool on_touch)
        : first_(first), second_(second), capacity_(capacity), delay_(delay), on_touch_(on_touch) {
        if (capacity_ > 0)
            carrier_ = std::thread([this] { run(); });
    }
    ~chain_copies() {
        {
            const std::lock_guard guard(lock_);
            stop_ = true;
        }
        wake_.notify_all();
        if (carrier_.joinable())
            carrier_.join(); // copies the waiting records first
    }

    chain_copies(const chain_copies&) = delete;
    chain_copies& operator=(const chain_copies&) = delete;

    /// Registers a record that was put into the first tier. It is copied after the delay, or once it is touched.
    /// Throws: bad_alloc.
    void put(const tier_entry& entry) {
        if (capacity_ == 0)
            return;
        {
            const std::lock_guard guard(lock_);
            known& one = note(entry.name);
            one.entry = entry;
            if (!on_touch_)
                enqueue(one);
        }
        wake_.notify_all();
    }

    /// Registers a read of a record from the first tier. Throws: bad_alloc.
    void touch(const sha256_digest& name) {
        if (capacity_ == 0 || !on_touch_)
            return;
        {
            const std::lock_guard guard(lock_);
            enqueue(note(name));
        }
        wake_.notify_all();
    }

    /// Cancels the copy of a record. The caller then erases it from both tiers.
    void forget(const sha256_digest& name) noexcept {
        if (capacity_ == 0)
            return;
        const std::lock_guard guard(lock_);
        known_.erase(name);
        std::erase_if(queue_, [&](const job& one) { return one.entry.name == name; });
        forgotten_ = forgotten_ || (busy_ && carried_ == name);
    }

    /// Returns the known metadata of a record.
    [[nodiscard]] tier_entry entry_of(const sha256_digest& name) const {
        const std::lock_guard guard(lock_);
        const auto found = known_.find(name);
        return found == known_.end() ? tier_entry{.name = name} : found->second.entry;
    }

    /// Waits until all waiting records are copied.
    void flush() {
        std::unique_lock guard(lock_);
        hurry_ = true;
        wake_.notify_all();
        idle_.wait(guard, [this] { return queue_.empty() && !busy_; });
        hurry_ = false;
    }

    /// Records that found no room in the queue, or were absent when they were to be copied.
    [[nodiscard]] std::uint64_t dropped() const {
        const std::lock_guard guard(lock_);
        return dropped_;
    }

private:
    using clock = std::chrono::steady_clock;

    struct known {
        tier_entry entry = {};
        bool queued = false; // is queued, or was once
    };
    struct job {
        tier_entry entry = {};
        clock::time_point due = {};
    };

    [[nodiscard]] known& note(const sha256_digest& name) {
        if (known_.size() >= most_known && !known_.contains(name))
            known_.clear();
        known& one = known_[name];
        one.entry.name = name;
        return one;
    }

    void enqueue(known& one) {
        if (one.queued)
            return;
        if (queue_.size() >= capacity_) {
            ++dropped_;
            return;
        }
        queue_.push_back({one.entry, clock::now() + delay_});
        one.queued = true;
    }

    void run() {
        std::unique_lock guard(lock_);
        for (;;) {
            wake_.wait(guard, [this] { return stop_ || !queue_.empty(); });
            if (queue_.empty())
                return;
            wake_.wait_until(guard, queue_.front().due, [this] { return stop_ || hurry_; });
            const tier_entry entry = queue_.front().entry;
            queue_.pop_front();
            carried_ = entry.name;
            busy_ = true;
            guard.unlock();
            bool done = carry(entry);
            guard.lock();
            if (std::exchange(forgotten_, false)) { // erased while it was copied
                guard.unlock();
                done = second_.erase(entry.name).has_value();
                guard.lock();
            }
            dropped_ += !done;
            busy_ = false;
            idle_.notify_all();
        }
    }

    [[nodiscard]] bool carry(const tier_entry& entry) {
        bool taken = false;
        const auto use = [&](std::span<const std::byte> bytes) {
            const std::span<const std::byte> pieces[] = {bytes};
            taken = second_.put(entry, pieces).has_value();
        };
        return kvcache::detail::completes<std::bad_alloc>([&] {
                   const auto there = first_.read(entry.name, use);
                   if (there && !*there && first_.flush()) // it may not be written yet
                       static_cast<void>(first_.read(entry.name, use));
               }) &&
               taken;
    }

    static constexpr std::size_t most_known = std::size_t{1} << 16;

    First& first_;
    Second& second_;
    const std::size_t capacity_;
    const std::chrono::milliseconds delay_;
    const bool on_touch_;

    mutable std::mutex lock_; // guards the members below
    std::condition_variable wake_, idle_;
    std::unordered_map<sha256_digest, known, name_hash> known_;
    std::deque<job> queue_;
    sha256_digest carried_ = {};
    bool stop_ = false, hurry_ = false, busy_ = false, forgotten_ = false;
    std::uint64_t dropped_ = 0;
    std::thread carrier_;
};

/// When the second tier of a chain gets a record.
enum class chain_write {
    through,      ///< With the first tier.
    back,         ///< Later, copied from the first tier in the background: after a delay, at a flush and at the end.
    second_touch, ///< In the background, after its first read from the first tier.
};

/// Two tiers, read in order: for example a disk before a server. A record found only in the second is put into the
/// first when it is read. A tier that fails is skipped. Longer chains nest: chain{memory<>{}, chain{lmdb<>{},
/// redis{}}}.
template <tier_policy First = memory<>, tier_policy Second = memory<>>
struct chain {
    using role = tier_role;
    First first = {};
    Second second = {};
    chain_write write = chain_write::through;
    std::chrono::milliseconds delay = std::chrono::seconds(1); ///< `back`: delay before a record is copied.
    std::size_t waiting = 4096; ///< Maximum records that wait for the second tier; more are dropped.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy First, tier_policy Second>
chain(First, Second) -> chain<First, Second>;
template <tier_policy First, tier_policy Second>
chain(First, Second, chain_write) -> chain<First, Second>;

template <tier_policy First, tier_policy Second>
class chain<First, Second>::state {
public:
    explicit state(const chain& how) : held_(std::make_unique<held>(how)) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const sha256_digest& name, Use&& use) {
        return tier::read_one(*this, name, use);
    }

    /// Like read_run of a run tier; each record may be in either tier. Errors: the error of the tier that failed
    /// last, if neither passed a record.
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const sha256_digest> names, Use&& use) {
        std::size_t at = 0;
        bool more = true;
        result<void> fault;
        const auto go_on = [&](auto& tier, bool first) {
            const std::size_t there = tier::count_prefix_hits(tier, names.subspan(at));
            const auto given =
                tier::read_run(tier, names.subspan(at, there), [&](std::size_t i, std::span<const std::byte> bytes) {
                    more = use(at + i, bytes);
                    if (first)
                        held_->copies.touch(names[at + i]);
                    else
                        promote(names[at + i], bytes);
                    return more;
                });
            if (!given)
                fault = given.error();
            at += given ? *given : 0;
            return more && at < names.size();
        };
        for (std::size_t before = names.size(); before != at;) {
            before = at;
            if (!go_on(held_->first, true) || !go_on(held_->second, false))
                break;
        }
        held_->hits += at;
        held_->misses += more && at < names.size();
        if (at == 0 && !fault)
            return fault.error();
        return at;
    }
    [[nodiscard]] std::size_t count_prefix_hits(std::span<const sha256_digest> names) {
        std::size_t at = 0;
        for (std::size_t before = names.size(); before != at && at < names.size();) {
            before = at;
            at += tier::count_prefix_hits(held_->first, names.subspan(at));
            at += tier::count_prefix_hits(held_->second, names.subspan(at));
        }
        return at;
    }

    [[nodiscard]] std::vector<bool> present(std::span<const sha256_digest> names) {
        std::vector<bool> there = tier::present(held_->first, names);
        const std::vector<bool> second = tier::present(held_->second, names);
        for (std::size_t i = 0; i < names.size(); ++i)
            there[i] = there[i] || second[i];
        return there;
    }

    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        const auto first = held_->first.put(entry, pieces);
        if (held_->how.write != chain_write::through) {
            held_->copies.put(entry);
            return first;
        }
        const auto second = held_->second.put(entry, pieces);
        return first ? second : first;
    }
    [[nodiscard]] bool contains(const sha256_digest& name) {
        return held_->first.contains(name) || held_->second.contains(name);
    }
    [[nodiscard]] result<void> erase(const sha256_digest& name) {
        held_->copies.forget(name);
        const auto first = held_->first.erase(name), second = held_->second.erase(name);
        return first ? second : first;
    }
    [[nodiscard]] result<void> flush() {
        const auto first = held_->first.flush();
        held_->copies.flush();
        const auto second = held_->second.flush();
        return first ? second : first;
    }
    /// Returns what is wrong if neither tier can be used.
    [[nodiscard]] result<void> status() const {
        const auto first = held_->first.status();
        return first ? first : held_->second.status();
    }
    /// Returns the sums of both tiers, except for hits and misses, which are those of the chain; see first() and
    /// second().
    [[nodiscard]] tier_counts counts() const {
        tier_counts all = held_->first.counts();
        const tier_counts more = held_->second.counts();
        all.records += more.records, all.bytes += more.bytes;
        all.hits = held_->hits, all.misses = held_->misses;
        all.written += more.written, all.bytes_written += more.bytes_written;
        all.evicted += more.evicted, all.dropped += more.dropped + held_->copies.dropped();
        all.failures += more.failures;
        return all;
    }

    [[nodiscard]] bool is_null() const noexcept {
        return kvcache::is_null(held_->first) && kvcache::is_null(held_->second);
    }
    [[nodiscard]] std::size_t parallel_reads() const noexcept {
        return std::min(max_parallel_reads(held_->first), max_parallel_reads(held_->second));
    }

    [[nodiscard]] auto& first() noexcept { return held_->first; }
    [[nodiscard]] auto& second() noexcept { return held_->second; }

private:
    using first_state = decltype(std::declval<const First&>().open());
    using second_state = decltype(std::declval<const Second&>().open());

    // Copies a record of the second tier to the first.
    void promote(const sha256_digest& name, std::span<const std::byte> bytes) {
        const std::span<const std::byte> pieces[] = {bytes};
        static_cast<void>(held_->first.put(held_->copies.entry_of(name), pieces)); // the first tier counts rejections
    }

    struct held {
        explicit held(const chain& options)
            : how(options),
              first(options.first.open()),
              second(options.second.open()),
              copies(first, second, options.write == chain_write::through ? 0 : options.waiting,
                     options.write == chain_write::back ? options.delay : std::chrono::milliseconds(0),
                     options.write == chain_write::second_touch) {}
        const chain how;
        first_state first;
        second_state second;
        std::atomic<std::uint64_t> hits{0}, misses{0};
        chain_copies<first_state, second_state> copies;
    };
    std::unique_ptr<held> held_;
};

static_assert(tier_policy<chain<>>);

}}} // namespace kvcache::tier
