// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace server {

/// One thread per open connection, started when all others are busy, so that idle clients block no other client. Above
/// the limit a connection waits for another one to close.
class client_threads {
public:
    explicit client_threads(std::size_t most) : most_(most) {}
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

    /// Requires: `serve` does not throw. Throws: system_error, if there is no thread at all and none can be started.
    void run(std::function<void()> serve) {
        const std::lock_guard guard(lock_);
        waiting_.push_back(std::move(serve));
        if (waiting_.size() > idle_ && threads_.size() < most_)
            try {
                threads_.emplace_back([this] { work(); });
            } catch (const std::system_error&) { // no more threads: an existing one takes the connection
                if (threads_.empty())
                    throw;
            }
        arrived_.notify_one();
    }

private:
    void work() {
        std::unique_lock guard(lock_);
        while (true) {
            ++idle_;
            arrived_.wait(guard, [&] { return ends_ || !waiting_.empty(); });
            --idle_;
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

    std::size_t most_;
    std::mutex lock_;
    std::condition_variable arrived_;
    std::deque<std::function<void()>> waiting_;
    std::list<std::thread> threads_;
    std::size_t idle_ = 0;
    bool ends_ = false;
};

} // namespace server
