// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

namespace server {

/// Threads for connections, one for each that is open, so that idle clients block no other client.
class client_threads {
public:
    client_threads() = default;
    client_threads(const client_threads&) = delete;
    client_threads& operator=(const client_threads&) = delete;
    ~client_threads() {
        {
            const std::lock_guard guard(lock_);
            ends_ = true;
            arrived_.notify_all();
        }
        for (auto& each : threads_)
            each.join();
    }

    /// Starts threads until there are as many as wanted, or the system refuses one. Returns how many there are.
    [[nodiscard]] std::size_t grow(std::size_t wanted) {
        const std::lock_guard guard(lock_);
        try {
            while (threads_.size() < wanted)
                threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) { // no more threads
        } catch (const std::bad_alloc&) {
        }
        return threads_.size();
    }

    /// Has the next free thread serve a connection. Requires: `serve` does not throw. Throws: bad_alloc.
    void run(std::function<void()> serve) {
        const std::lock_guard guard(lock_);
        waiting_.push_back(std::move(serve));
        arrived_.notify_one();
    }

private:
    void work() {
        std::unique_lock guard(lock_);
        while (true) {
            arrived_.wait(guard, [&] { return ends_ || !waiting_.empty(); });
            if (waiting_.empty())
                return;
            auto serve = std::move(waiting_.front());
            waiting_.pop_front();
            guard.unlock();
            serve();
            serve = nullptr;
            guard.lock();
        }
    }

    std::mutex lock_;
    std::condition_variable arrived_;
    std::deque<std::function<void()>> waiting_;
    std::list<std::thread> threads_;
    bool ends_ = false;
};

} // namespace server
