// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/memory.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <mutex>
#include <new>
#include <stop_token>
#include <thread>
#include <utility>

#include <pthread.h>
#include <sched.h>

namespace server {

/// A memory resource that prepares blocks ahead of their use. For each large block allocated, it prepares a second
/// one of the same size, so that a request does not wait while the system maps and zeroes pages. It holds at most one
/// spare block. The preparing thread has idle priority. All blocks are zeroed. For any thread.
class ready_memory : public std::pmr::memory_resource {
public:
    ready_memory() : preparing_([this](const std::stop_token& stop) { prepare(stop); }) {}
    ready_memory(const ready_memory&) = delete;
    ready_memory& operator=(const ready_memory&) = delete;
    ~ready_memory() override {
        preparing_.request_stop();
        preparing_.join();
        give_back(next_);
    }

private:
    struct block {
        void* at = nullptr;
        std::size_t bytes = 0, alignment = 0;
    };

    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (alignment < kvcache::huge_page_bytes)
            return from_->allocate(bytes, alignment);
        const block asked{nullptr, bytes, alignment};
        {
            const std::lock_guard guard(lock_);
            const block spare = std::exchange(next_, {});
            wanted_ = asked;
            asked_.notify_one();
            if (spare.bytes == bytes && spare.alignment == alignment)
                return spare.at;
            give_back(spare);
        }
        return taken(asked).at;
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        from_->deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }

    [[nodiscard]] block taken(block made) {
        made.at = from_->allocate(made.bytes, made.alignment);
        kvcache::want_huge_pages(made.at, made.bytes);
        return made;
    }
    [[nodiscard]] block touched(const block& wanted) {
        const block made = taken(wanted);
        std::memset(made.at, 0, made.bytes);
        return made;
    }
    void give_back(const block& of) {
        if (of.at != nullptr)
            from_->deallocate(of.at, of.bytes, of.alignment);
    }

    void prepare(const std::stop_token& stop) {
#if defined(SCHED_IDLE)
        const sched_param none{};
        pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
#endif
        std::unique_lock guard(lock_);
        while (asked_.wait(guard, stop, [&] { return wanted_.bytes > 0; })) {
            const block wanted = std::exchange(wanted_, {});
            guard.unlock();
            block made;
            try {
                made = touched(wanted);
            } catch (const std::bad_alloc&) { // the caller that needs it gets the error
            }
            guard.lock();
            give_back(std::exchange(next_, made));
        }
    }

    std::pmr::memory_resource* from_ = kvcache::zeroed_memory::shared();
    std::mutex lock_;
    std::condition_variable_any asked_;
    block wanted_; // to be prepared; none if it has no bytes
    block next_;   // prepared
    std::jthread preparing_;
};

} // namespace server
