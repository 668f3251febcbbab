// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "connection.hpp"
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

namespace server {

/// Whether a request has to be given up: its client has disconnected, its time is over, or the server ends.
class request_watch {
public:
    request_watch(const connection& client, std::chrono::seconds most)
        : client_(client), deadline_(std::chrono::steady_clock::now() + most) {}
    [[nodiscard]] bool operator()() const {
        return client_.closed() || client_.ending() || std::chrono::steady_clock::now() > deadline_;
    }

private:
    const connection& client_;
    std::chrono::steady_clock::time_point deadline_;
};

/// Reads large requests one at a time, on a thread that gives way to all others: many at once take neither the memory
/// of many nor the processors from answers that are being computed.
class preparation {
public:
    static constexpr std::size_t large = std::size_t{64} << 10; ///< Bytes of a body; smaller ones are read at once.

    preparation() : thread_([this](const std::stop_token& end) { run_all(end); }) {}

    /// Calls `work(stop)` for a body of `bytes` bytes, and waits for it. Returns false if the watch ended it: it was
    /// not called, or it was asked to stop. Throws: what `work` throws.
    template <class Work>
    [[nodiscard]] bool run(std::size_t bytes, const request_watch& watch, Work&& work) {
        if (bytes <= large) {
            work(std::stop_token());
            return true;
        }
        const auto mine = std::make_shared<job>();
        mine->work = std::ref(work);
        std::unique_lock guard(lock_);
        waiting_.push_back(mine);
        changed_.notify_all();
        while (!changed_.wait_for(guard, std::chrono::milliseconds(50), [&] { return mine->over; })) {
            guard.unlock();
            const bool ends = watch();
            guard.lock();
            if (ends) {
                mine->stop.request_stop();
                if (std::erase(waiting_, mine) > 0)
                    return false;
            }
        }
        if (mine->thrown)
            std::rethrow_exception(mine->thrown);
        return !mine->stop.stop_requested();
    }

private:
    struct job {
        std::function<void(std::stop_token)> work = {};
        std::stop_source stop = {};
        std::exception_ptr thrown = {};
        bool over = false;
    };

    void run_all(const std::stop_token& end) {
        (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10); // of this thread, on Linux
        std::unique_lock guard(lock_);
        while (changed_.wait(guard, end, [&] { return !waiting_.empty(); })) {
            const auto next = std::move(waiting_.front());
            waiting_.pop_front();
            guard.unlock();
            try {
                next->work(next->stop.get_token());
            } catch (...) {
                next->thrown = std::current_exception();
            }
#if defined(__GLIBC__)
            ::malloc_trim(0); // megabytes in small pieces, which the C library would keep
#endif
            guard.lock();
            next->over = true;
            changed_.notify_all();
        }
    }

    std::mutex lock_;
    std::condition_variable_any changed_;
    std::deque<std::shared_ptr<job>> waiting_;
    std::jthread thread_;
};

} // namespace server
