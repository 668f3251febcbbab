// SPDX-License-Identifier: MIT
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace server {

/// An answer that is complete, and holds pages until its turn or its chunk is kept.
class ended_answer {
public:
    virtual ~ended_answer() = default;
    /// Keeps what there is to keep, and releases the pages; once, whichever thread calls it first.
    virtual void keep() = 0;
};

/// Answers that their clients' threads have not handled yet. Where pages are short, the computing thread does it for
/// them, so that no request is refused for pages that are about to be free.
class ended_answers {
public:
    /// Without memory it is left to its client's thread.
    void add(std::weak_ptr<ended_answer> one) noexcept {
        const std::lock_guard guard(lock_);
        std::erase_if(waiting_, [](const auto& each) { return each.expired(); });
        try {
            waiting_.push_back(std::move(one));
        } catch (const std::bad_alloc&) {
        }
    }

    /// Keeps the one that waits longest. Returns whether there was one.
    bool keep_one() noexcept {
        std::shared_ptr<ended_answer> first;
        {
            const std::lock_guard guard(lock_);
            while (!first && !waiting_.empty()) {
                first = waiting_.front().lock();
                waiting_.pop_front();
            }
        }
        try {
            if (first)
                first->keep();
        } catch (const std::bad_alloc&) { // its turn is lost, which the next one computes
        }
        return first != nullptr;
    }

private:
    std::mutex lock_;
    std::deque<std::weak_ptr<ended_answer>> waiting_;
};

} // namespace server
