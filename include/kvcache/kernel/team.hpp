// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace kvcache {

/// A fixed group of threads that share loops. The caller is one of them. Work is dealt by index, so which thread
/// runs an index never changes a result: nothing is ever summed across threads.
class team {
public:
    /// Starts `threads` - 1 threads that sleep between loops.
    explicit team(std::size_t threads = 1) : shared_(std::make_unique<state>()) {
        expects(threads > 0, "a team has at least one thread");
        members_.reserve(threads - 1);
        try {
            for (std::size_t member = 1; member < threads; ++member)
                members_.emplace_back([shared = shared_.get(), member] { serve(*shared, member); });
        } catch (...) { // the system has no more threads: those that began must end before the exception leaves
            dismiss();
            throw;
        }
    }

    team(team&&) noexcept = default;
    team& operator=(team&&) = delete;

    ~team() {
        if (shared_)
            dismiss();
    }

    [[nodiscard]] std::size_t threads() const noexcept { return members_.size() + 1; }

    /// Multiply-adds, a few microseconds of them, under which waking a thread costs more than it saves.
    static constexpr std::size_t worth_sharing = std::size_t{1} << 18;

    /// As below, but a loop of less `work` (multiply-adds, about) than is worth sharing runs on the caller alone.
    template <class Body>
    void share(std::size_t jobs, std::size_t work, Body&& body) {
        if (work < worth_sharing)
            body(std::size_t{0}, jobs);
        else
            share(jobs, body);
    }

    /// Calls body(member, begin, end) for ranges that cover [0, jobs) once, on as many threads as are free; `member` says
    /// which, below threads(). A loop of less `work` than is worth sharing runs on the caller alone.
    template <class Body>
    void share_by_member(std::size_t jobs, std::size_t work, Body&& body) {
        if (work < worth_sharing || members_.empty()) {
            body(std::size_t{0}, std::size_t{0}, jobs);
            return;
        }
        std::atomic<std::size_t> next{0};
        share(threads(), [&](std::size_t begin, std::size_t end) {
            for (std::size_t member = begin; member < end; ++member)
                for (std::size_t job; (job = next.fetch_add(1)) < jobs;)
                    body(member, job, job + 1);
        });
    }

    /// Calls body(begin, end) on each thread, the ranges covering [0, jobs) once. Returns when all are done.
    /// Throws: what a body threw, the first of them, once all have ended.
    /// Requires: one loop at a time; a body does not share again.
    template <class Body>
    void share(std::size_t jobs, Body&& body) {
        if (members_.empty() || jobs < 2) {
            body(std::size_t{0}, jobs);
            return;
        }
        expects(shared_->part == nullptr, "a team shares one loop at a time");
        const std::size_t n = threads();
        const std::function<void(std::size_t)> part = [&](std::size_t member) {
            const std::size_t begin = jobs * member / n, end = jobs * (member + 1) / n;
            if (begin < end)
                body(begin, end);
        };
        shared_->part = &part;
        shared_->pending.store(members_.size(), std::memory_order_relaxed);
        shared_->round.fetch_add(1, std::memory_order_release);
        shared_->round.notify_all();
        run(*shared_, 0);
        for (std::size_t left = shared_->pending.load(std::memory_order_acquire); left != 0;
             left = shared_->pending.load(std::memory_order_acquire))
            spin_or_wait(shared_->pending, left);
        shared_->part = nullptr;
        shared_->failed.clear();
        if (shared_->failure)
            std::rethrow_exception(std::exchange(shared_->failure, nullptr));
    }

private:
    struct state {
        std::atomic<std::uint64_t> round{0};
        std::atomic<std::size_t> pending{0};
        std::atomic<bool> stop{false};
        const std::function<void(std::size_t)>* part = nullptr; // of the loop that runs
        std::atomic_flag failed;                                // guards failure
        std::exception_ptr failure;
    };

    // A product takes tens of microseconds: spin that long before asking the system to sleep.
    template <class T>
    static void spin_or_wait(std::atomic<T>& value, T old) {
        for (int spin = 0; spin < 4096; ++spin)
            if (value.load(std::memory_order_acquire) != old)
                return;
        value.wait(old, std::memory_order_acquire);
    }

    static void run(state& shared, std::size_t member) {
        try {
            (*shared.part)(member);
        } catch (...) {
            if (!shared.failed.test_and_set())
                shared.failure = std::current_exception();
        }
    }

    void dismiss() {
        shared_->stop.store(true);
        shared_->round.fetch_add(1);
        shared_->round.notify_all();
        for (auto& member : members_)
            member.join();
    }

    static void serve(state& shared, std::size_t member) {
        for (std::uint64_t seen = 0;;) {
            spin_or_wait(shared.round, seen);
            const std::uint64_t now = shared.round.load(std::memory_order_acquire);
            if (now == seen)
                continue;
            seen = now;
            if (shared.stop.load())
                return;
            run(shared, member);
            if (shared.pending.fetch_sub(1, std::memory_order_acq_rel) == 1)
                shared.pending.notify_all();
        }
    }

    std::unique_ptr<state> shared_;
    std::vector<std::thread> members_;
};

} // namespace kvcache
