// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/index/radix.hpp>
#include <kvcache/locking/concept.hpp>

#include <chrono>
#include <cstddef>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace bench {

using lock_clock = std::chrono::steady_clock;

/// The calls of a host that take the lock of a cache.
enum class cache_call { match, open, reserve, commit, release };
inline constexpr const char* cache_call_names[] = {"match", "open", "reserve", "commit", "release"};

/// One time that a thread held the lock, and what it did before.
struct lock_section {
    cache_call call = cache_call::match;
    std::size_t rows = 0; ///< Rows that the model computes before it.
    double before = 0.0;  ///< Seconds outside of the lock before it, without the model.
    double inside = 0.0;  ///< Seconds under the lock.
    double search = 0.0;  ///< Seconds of these that the index was only read.
};

/// Records the sections of the thread that made it, until it is destroyed.
class lock_recorder {
public:
    lock_recorder() : before_(std::exchange(current_, this)) { left_ = lock_clock::now(); }
    ~lock_recorder() { current_ = before_; }
    lock_recorder(const lock_recorder&) = delete;
    lock_recorder& operator=(const lock_recorder&) = delete;

    [[nodiscard]] static lock_recorder* current() noexcept { return current_; }

    /// What the sections from now on belong to, and the rows that were computed before the next one.
    void begin(cache_call call, std::size_t rows = 0) noexcept { next_ = {.call = call, .rows = rows}; }

    void add_search(double seconds) noexcept { next_.search += seconds; }
    void add(lock_clock::time_point entered, lock_clock::time_point left) {
        next_.before = std::chrono::duration<double>(entered - left_).count();
        next_.inside = std::chrono::duration<double>(left - entered).count();
        sections_.push_back(next_);
        next_ = {.call = next_.call};
        left_ = lock_clock::now(); // what adding took is not counted
    }

    [[nodiscard]] std::vector<lock_section> take() { return std::exchange(sections_, {}); }

private:
    static inline thread_local lock_recorder* current_ = nullptr;

    lock_recorder* before_;
    lock_section next_;
    lock_clock::time_point left_;
    std::vector<lock_section> sections_;
};

/// A mutex that tells the recorder of its thread how long it is held.
struct recorded_mutex {
    using role = kvcache::locking_role;
    class state {
    public:
        void lock() {
            mutex_.lock();
            entered_ = lock_clock::now();
        }
        void unlock() {
            const auto left = lock_clock::now(), entered = entered_;
            mutex_.unlock();
            if (lock_recorder* const to = lock_recorder::current())
                to->add(entered, left);
        }

    private:
        std::mutex mutex_;
        lock_clock::time_point entered_;
    };
};

/// A radix tree that tells the recorder how long a match only reads it.
struct recorded_radix {
    using role = kvcache::index_role;
    class state : public kvcache::index::radix::state {
    public:
        explicit state(kvcache::index::radix::state of) : kvcache::index::radix::state(std::move(of)) {}

        [[nodiscard]] kvcache::index_match match(std::span<const kvcache::token_id> tokens) const {
            const auto began = lock_clock::now();
            auto found = kvcache::index::radix::state::match(tokens);
            if (lock_recorder* const to = lock_recorder::current())
                to->add_search(std::chrono::duration<double>(lock_clock::now() - began).count());
            return found;
        }
    };
    [[nodiscard]] state open(kvcache::page_shape shape, std::size_t pages) const {
        return state(kvcache::index::radix{}.open(shape, pages));
    }
};

static_assert(kvcache::locking_policy<recorded_mutex> && kvcache::index_policy<recorded_radix>);

} // namespace bench
