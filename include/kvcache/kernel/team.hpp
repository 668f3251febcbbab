// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

namespace detail {

/// Tells the processor that this thread spins.
inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

} // namespace detail

/// A fixed group of threads that share loops. The caller is one of them, and no thread is pinned. Ranges of a loop are
/// claimed as threads come free, so one that the system has descheduled holds up no more than the range it runs, and
/// one that sleeps holds up nothing. Which thread runs an index never changes a result: nothing is ever summed across
/// threads. Cost: under 2 us a loop while the threads are awake, which they stay for some tens of microseconds.
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

    /// Multiply-adds, a few microseconds of them, under which sharing costs more than it saves.
    static constexpr std::size_t worth_sharing = std::size_t{1} << 16;

    /// Calls body(begin, end) for ranges that cover [0, jobs) once, on any of the threads, several a thread. Returns
    /// when all are done. A loop of less `work` (multiply-adds, about) than is worth sharing runs on the caller alone.
    /// Throws: what a body threw, the first of them, once all have ended.
    /// Requires: one loop at a time; a body does not share again. Allocates nothing.
    template <class Body>
    void share(std::size_t jobs, std::size_t work, Body&& body) {
        share_by_member(jobs, work, [&](std::size_t, std::size_t begin, std::size_t end) { body(begin, end); });
    }
    template <class Body>
    void share(std::size_t jobs, Body&& body) {
        share(jobs, worth_sharing, std::forward<Body>(body));
    }

    /// As share, but calls body(member, begin, end) with the number of the thread, in [0, threads()): the place of its
    /// scratch memory.
    template <class Body>
    void share_by_member(std::size_t jobs, std::size_t work, Body&& body) {
        if (alone(jobs, work)) {
            if (jobs > 0)
                body(std::size_t{0}, std::size_t{0}, jobs);
            return;
        }
        using body_type = std::remove_reference_t<Body>;
        run_all(jobs, &body, [](const void* of, std::size_t member, std::size_t begin, std::size_t end) {
            (*static_cast<body_type*>(const_cast<void*>(of)))(member, begin, end);
        });
    }

    /// As share, but each thread has a part of the loop, whose ranges come one behind another, and claims another's
    /// when its own are done: for threads of one pace, what they read and fetch ahead goes on. A job counts as `cut`
    /// pieces, and the last of each part is claimed by the piece, so that threads of unequal pace end together.
    /// Calls body(first piece, behind the last) for pieces of [0, jobs * cut). Requires: 0 < cut < 16.
    template <class Body>
    void share_adjacent(std::size_t jobs, std::size_t cut, std::size_t work, Body&& body) {
        expects(cut > 0 && cut < ranges_a_thread, "a job is cut into few pieces");
        if (alone(jobs, work)) {
            if (jobs > 0)
                body(std::size_t{0}, jobs * cut);
            return;
        }
        // Of whole jobs the largest part has so many ranges, before the pieces of its last job.
        const std::size_t parts = threads(), whole = std::min((jobs - 1) / parts, ranges_a_thread - cut);
        share(parts * (whole + cut), work, [&](std::size_t claim, std::size_t last) {
            for (; claim < last; ++claim) { // claims go round the parts, and through each from front to back
                const std::size_t part = claim % parts, range = claim / parts;
                const std::size_t first = jobs * part / parts, end = jobs * (part + 1) / parts;
                if (first == end)
                    continue;
                const std::size_t final = end - 1; // the job that comes by pieces
                const auto at = [&](std::size_t r) { return (first + (final - first) * r / whole) * cut; };
                if (range >= whole)
                    body(final * cut + range - whole, final * cut + range - whole + 1);
                else if (at(range) < at(range + 1))
                    body(at(range), at(range + 1));
            }
        });
    }

    /// Room for so many numbers on a cache line, with any content: what a caller prepares for its loops. It is
    /// another's at the next call. Allocates only where more are asked for than ever before.
    [[nodiscard]] float* scratch(std::size_t numbers) {
        if (scratch_.size() < numbers)
            scratch_ = aligned_vector<float>(numbers);
        return scratch_.data();
    }

private:
    [[nodiscard]] bool alone(std::size_t jobs, std::size_t work) const noexcept {
        return members_.empty() || jobs < 2 || work < worth_sharing;
    }

    using call = void (*)(const void* body, std::size_t member, std::size_t begin, std::size_t end);

    // A loop is cut into at most `ranges_a_thread` ranges a thread. The ticket holds the loop's number and how many
    // ranges nobody has claimed: whoever takes one off has claimed it, of that loop. The loop's description is written
    // only while none is left and all are done, so a claim that succeeds has read the right description.
    struct state {
        alignas(64) std::atomic<const void*> body{nullptr};
        std::atomic<call> function{nullptr};
        std::atomic<std::size_t> jobs{0};
        std::atomic<std::uint32_t> ranges{0};
        std::atomic<std::uint64_t> ticket{0};           // one line with what it announces
        alignas(64) std::atomic<std::uint32_t> done{0}; // ranges of this loop that have ended
        alignas(64) std::atomic<std::uint32_t> asleep{0};
        std::atomic<std::uint32_t> calls{0}; // what sleepers wait for
        std::atomic<bool> stop{false};
        std::atomic_flag failed; // guards failure
        std::exception_ptr failure;
    };

    static constexpr std::size_t ranges_a_thread = 16;
    static constexpr std::uint64_t one_round = std::uint64_t{1} << 32;

    void run_all(std::size_t jobs, const void* body, call function) {
        state& s = *shared_;
        expects(s.body.load(std::memory_order_relaxed) == nullptr, "a team shares one loop at a time");
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
            spin < spins ? detail::pause() : std::this_thread::yield();
        s.body.store(nullptr, std::memory_order_relaxed);
        s.failed.clear(std::memory_order_relaxed);
        if (s.failure)
            std::rethrow_exception(std::exchange(s.failure, nullptr));
    }

    // Claims and runs ranges until the loop has none left.
    static void work(state& s, std::size_t member) {
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
                function(body, member, jobs * range / ranges, jobs * (range + 1) / ranges);
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
        for (auto& member : members_)
            member.join();
    }

    // Between the loops of a forward pass lie microseconds: spin for longer than that before asking the system to
    // sleep.
    static constexpr unsigned spins = 2000;

    static void serve(state& s, std::size_t member) {
        for (std::uint64_t seen = 0; !s.stop.load(std::memory_order_acquire);) {
            const auto idle = [&] { return s.ticket.load(std::memory_order_seq_cst) / one_round == seen; };
            for (unsigned spin = 0; idle() && spin < spins; ++spin)
                detail::pause();
            if (idle()) {
                const std::uint32_t call = s.calls.load(std::memory_order_seq_cst);
                s.asleep.fetch_add(1, std::memory_order_seq_cst);
                if (idle() && !s.stop.load(std::memory_order_seq_cst))
                    s.calls.wait(call, std::memory_order_seq_cst);
                s.asleep.fetch_sub(1, std::memory_order_seq_cst);
            }
            seen = s.ticket.load(std::memory_order_acquire) / one_round;
            work(s, member);
        }
    }

    std::unique_ptr<state> shared_;
    std::vector<std::thread> members_;
    aligned_vector<float> scratch_;
};

} // namespace kvcache
