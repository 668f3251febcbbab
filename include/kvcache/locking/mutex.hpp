// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>

#include <condition_variable>
#include <mutex>

namespace kvcache { inline namespace KVCACHE_ABI { namespace locking {

/// Any number of threads may use the cache. One mutex guards its metadata; pages are written and read outside of the
/// lock.
struct mutex {
    using role = locking_role;
    class state;
};

class mutex::state {
public:
    void lock() { mutex_.lock(); }
    void unlock() noexcept { mutex_.unlock(); }

    /// Unlocks, waits for a `notify`, and locks again. Requires: locked.
    void wait() {
        std::unique_lock held(mutex_, std::adopt_lock);
        changed_.wait(held);
        held.release();
    }
    void notify() noexcept { changed_.notify_all(); }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
};

static_assert(locking_policy<mutex>);

}}} // namespace kvcache::locking
