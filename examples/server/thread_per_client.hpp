// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "../support/guarded.hpp"
#include <httplib.h>

namespace server {

/// One thread per open connection, started when all others are busy, so that idle clients block no other client. Above
/// the limit a connection waits for another one to close.
class thread_per_client : public httplib::TaskQueue {
public:
    explicit thread_per_client(std::size_t most) : most_(most) {}

    void enqueue(std::function<void()> serve) override {
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

    void shutdown() override {
        {
            const std::lock_guard guard(lock_);
            ends_ = true;
            arrived_.notify_all();
        }
        for (auto& each : threads_)
            each.join();
        threads_.clear();
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
            const auto serve = std::move(waiting_.front());
            waiting_.pop_front();
            guard.unlock();
            (void)support::guarded("server", [&] { // an exception ends its connection, not the server
                serve();
                return 0;
            });
            guard.lock();
        }
    }

    std::size_t most_;
    std::mutex lock_;
    std::condition_variable arrived_;
    std::list<std::function<void()>> waiting_;
    std::list<std::thread> threads_;
    std::size_t idle_ = 0;
    bool ends_ = false;
};

} // namespace server
