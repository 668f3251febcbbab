// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/machine.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Fork-join thread pool for parallel loops. The caller is one of the threads, and no thread is pinned. Threads claim
/// ranges of a loop dynamically, so a descheduled thread delays at most the range that it runs, and a sleeping thread
/// delays nothing. The assignment of indices to threads never changes a result: nothing is summed across threads. Cost:
/// under 2 us a loop while the threads are awake; they stay awake for some tens of microseconds.
class thread_pool {
public:
    /// Starts `threads` - 1 threads that sleep between loops.
    explicit thread_pool(std::size_t threads = 1) : shared_(std::make_unique<state>()) {
        expects(threads > 0, "a thread pool has at least one thread");
        workers_.reserve(threads - 1);
        try {
            for (std::size_t worker = 1; worker < threads; ++worker)
                workers_.emplace_back([shared = shared_.get(), worker] { serve(*shared, worker); });
        } catch (...) { // out of system threads: the threads already started are joined before the exception leaves
            dismiss();
            throw;
        }
    }

    thread_pool(thread_pool&&) noexcept = default;
    thread_pool& operator=(thread_pool&&) = delete;

    ~thread_pool() {
        if (shared_)
            dismiss();
    }

    [[nodiscard]] std::size_t threads() const noexcept { return workers_.size() + 1; }

    /// Multiply-adds, a few microseconds of them, below which a parallel loop costs more than it saves.
    static constexpr std::size_t min_parallel_work = std::size_t{1} << 16;

    /// Calls body(begin, end) for ranges that cover [0, jobs) exactly once, on any of the threads, several ranges a
    /// thread. Returns when all are done. A loop of less `work` (approximate multiply-adds) than min_parallel_work runs
    /// on the caller alone. Throws: the first exception thrown by a body, once all have ended. Requires: one loop at a
    /// time; a body does not start another loop. Allocates nothing.
    template <class Body>
    void parallel_for(std::size_t jobs, std::size_t work, Body&& body) {
        parallel_for_worker(jobs, work, [&](std::size_t, std::size_t begin, std::size_t end) { body(begin, end); });
    }
    template <class Body>
    void parallel_for(std::size_t jobs, Body&& body) {
        parallel_for(jobs, min_parallel_work, std::forward<Body>(body));
    }

    /// The same, but calls body(worker, begin, end) with the index of the thread in [0, threads()), to select its
    /// scratch memory.
    template <class Body>
    void parallel_for_worker(std::size_t jobs, std::size_t work, Body&& body) {
        if (alone(jobs, work)) {
            if (jobs > 0)
                body(std::size_t{0}, std::size_t{0}, jobs);
            return;
        }
        using body_type = std::remove_reference_t<Body>;
        run_all(jobs, &body, [](const void* of, std::size_t worker, std::size_t begin, std::size_t end) {
            (*static_cast<body_type*>(const_cast<void*>(of)))(worker, begin, end);
        });
    }

    /// The same, but each thread has a contiguous part of the loop, takes its ranges in order, and steals from other
    /// parts when its own is done. With threads of equal speed, sequential reads and prefetches continue from range to
    /// range. A job counts as `cut` pieces, and the last job of each part is claimed piece by piece, so that threads of
    /// unequal speed finish together. Calls body(first piece, end piece) for pieces of [0, jobs * cut). Requires: 0 <
    /// cut < 16.
    template <class Body>
    void parallel_for_strided(std::size_t jobs, std::size_t cut, std::size_t work, Body&& body) {
        expects(cut > 0 && cut < ranges_a_thread, "a job is cut into few pieces");
        if (alone(jobs, work)) {
            if (jobs > 0)
                body(std::size_t{0}, jobs * cut);
            return;
        }
        // Ranges of whole jobs in the largest part, before the pieces of its last job.
        const std::size_t parts = threads(), whole = std::min((jobs - 1) / parts, ranges_a_thread - cut);
        parallel_for(parts * (whole + cut), work, [&](std::size_t claim, std::size_t last) {
            for (; claim < last; ++claim) { // claims go round-robin over the parts, and through each part front to back
                const std::size_t part = claim % parts, range = claim / parts;
                const std::size_t first = jobs * part / parts, end = jobs * (part + 1) / parts;
                if (first == end)
                    continue;
                const std::size_t final = end - 1; // the job that is claimed by pieces
                const auto at = [&](std::size_t r) { return (first + (final - first) * r / whole) * cut; };
                if (range >= whole)
                    body(final * cut + range - whole, final * cut + range - whole + 1);
                else if (at(range) < at(range + 1))
                    body(at(range), at(range + 1));
            }
        });
    }

    /// Scratch memory of `numbers` floats on a cache line, with undefined content, for data that a caller prepares for
    /// its loops. Valid until the next call. Allocates only if it grows.
    [[nodiscard]] float* scratch(std::size_t numbers) {
        if (scratch_.size() < numbers)
            scratch_ = aligned_vector<float>(numbers);
        return scratch_.data();
    }

private:
    [[nodiscard]] bool alone(std::size_t jobs, std::size_t work) const noexcept {
        return workers_.empty() || jobs < 2 || work < min_parallel_work;
    }

    using call = void (*)(const void* body, std::size_t worker, std::size_t begin, std::size_t end);

    // A loop is cut into at most `ranges_a_thread` ranges a thread. The ticket holds the loop's sequence number and the
    // count of unclaimed ranges; decrementing it claims a range of that loop. The loop's description is written only
    // while no range is unclaimed and all are done, so a claim that succeeds has read the right description.
    struct state {
        alignas(64) std::atomic<const void*> body{nullptr};
        std::atomic<call> function{nullptr};
        std::atomic<std::size_t> jobs{0};
        std::atomic<std::uint32_t> ranges{0};
        std::atomic<std::uint64_t> ticket{0};           // on one cache line with the description it publishes
        alignas(64) std::atomic<std::uint32_t> done{0}; // finished ranges of this loop
        alignas(64) std::atomic<std::uint32_t> asleep{0};
        std::atomic<std::uint32_t> calls{0}; // counter that sleeping threads wait on
        std::atomic<bool> stop{false};
        std::atomic_flag failed; // guards failure
        std::exception_ptr failure;
    };

    static constexpr std::size_t ranges_a_thread = 16;
    static constexpr std::uint64_t one_round = std::uint64_t{1} << 32;

    void run_all(std::size_t jobs, const void* body, call function) {
        state& s = *shared_;
        expects(s.body.load(std::memory_order_relaxed) == nullptr, "a thread pool runs one loop at a time");
        const auto ranges = static_cast<std::uint32_t>(std::min(jobs, threads() * ranges_a_thread));
        s.body.store(body, std::memory_order_relaxed);
        s.function.store(function, std::memory_order_relaxed);
        s.jobs.store(jobs, std::memory_order_relaxed);
        s.ranges.store(ranges, std::memory_order_relaxed);
        s.done.store(0, std::memory_order_relaxed);
        const std::uint64_t round = s.ticket.load(std::memory_order_relaxed) / one_round + 1;
        s.ticket.store(round * one_round + ranges, std::memory_order_seq_cst);
        if (s.asleep.load(std::memory_order_seq_cst) != 0)
            wake(s);

        work(s, 0);
        for (unsigned spin = 0; s.done.load(std::memory_order_acquire) != ranges; ++spin)
            spin < spins ? spin_pause() : std::this_thread::yield();
        s.body.store(nullptr, std::memory_order_relaxed);
        s.failed.clear(std::memory_order_relaxed);
        if (s.failure)
            std::rethrow_exception(std::exchange(s.failure, nullptr));
    }

    // Claims and runs ranges until none is left.
    static void work(state& s, std::size_t worker) {
        std::uint64_t ticket = s.ticket.load(std::memory_order_acquire);
        while (ticket % one_round != 0) {
            const void* body = s.body.load(std::memory_order_relaxed);
            const call function = s.function.load(std::memory_order_relaxed);
            const std::size_t jobs = s.jobs.load(std::memory_order_relaxed);
            const std::size_t ranges = s.ranges.load(std::memory_order_relaxed);
            if (!s.ticket.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                                std::memory_order_acquire))
                continue;
            const std::size_t range = ranges - ticket % one_round;
            try {
                function(body, worker, jobs * range / ranges, jobs * (range + 1) / ranges);
            } catch (...) {
                if (!s.failed.test_and_set())
                    s.failure = std::current_exception();
            }
            s.done.fetch_add(1, std::memory_order_acq_rel);
            ticket = s.ticket.load(std::memory_order_acquire);
        }
    }

    static void wake(state& s) {
        s.calls.fetch_add(1, std::memory_order_seq_cst);
        s.calls.notify_all();
    }

    void dismiss() {
        shared_->stop.store(true);
        wake(*shared_);
        for (auto& worker : workers_)
            worker.join();
    }

    // Gaps between the loops of a forward pass are microseconds: spin longer than that before sleeping.
    static constexpr unsigned spins = 2000;

    static void serve(state& s, std::size_t worker) {
        for (std::uint64_t seen = 0; !s.stop.load(std::memory_order_acquire);) {
            const auto idle = [&] { return s.ticket.load(std::memory_order_seq_cst) / one_round == seen; };
            for (unsigned spin = 0; idle() && spin < spins; ++spin)
                spin_pause();
            if (idle()) {
                const std::uint32_t call = s.calls.load(std::memory_order_seq_cst);
                s.asleep.fetch_add(1, std::memory_order_seq_cst);
                if (idle() && !s.stop.load(std::memory_order_seq_cst))
                    s.calls.wait(call, std::memory_order_seq_cst);
                s.asleep.fetch_sub(1, std::memory_order_seq_cst);
            }
            seen = s.ticket.load(std::memory_order_acquire) / one_round;
            work(s, worker);
        }
    }

    std::unique_ptr<state> shared_;
    std::vector<std::thread> workers_;
    aligned_vector<float> scratch_;
};

/// Opens a thread pool of this many threads, the caller included; 0: all hardware threads. It has one thread where
/// the system has no more.
KVCACHE_LAZY [[nodiscard]] inline thread_pool open_threads(std::size_t threads) {
    const std::size_t wanted = threads != 0 ? threads : std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
    try {
        return thread_pool(wanted);
    } catch (const std::system_error&) { // the system has no more threads
        return thread_pool(1);
    }
}

}} // namespace kvcache
