// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/exceptions.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/record_eviction.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// The records to be copied later from one tier to a second one, and the thread that copies them.
template <tier_state First, tier_state Second>
class chain_copies {
public:
    /// At most `room` records wait, each for `delay` before it is copied. With room 0 there is no thread, and nothing
    /// is copied.
    chain_copies(First& first, Second& second, std::size_t room, std::chrono::milliseconds delay, bool on_touch)
        : first_(first), second_(second), room_(room), delay_(delay), on_touch_(on_touch) {
        if (room_ > 0)
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
        if (room_ == 0)
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
        if (room_ == 0 || !on_touch_)
            return;
        {
            const std::lock_guard guard(lock_);
            enqueue(note(name));
        }
        wake_.notify_all();
    }

    /// Cancels the copy of a record. The caller then erases it from both tiers.
    void forget(const sha256_digest& name) noexcept {
        if (room_ == 0)
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
        if (queue_.size() >= room_) {
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
    const std::size_t room_;
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

}}} // namespace kvcache::tier
