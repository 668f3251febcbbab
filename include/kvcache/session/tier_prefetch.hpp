// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/locking/unlocked.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

namespace detail {

/// Whether a cache has a tier, and another thread may read it.
template <class Cache>
inline constexpr bool prefetches = [] {
    if constexpr (requires { Cache::has_tier; })
        return Cache::has_tier && !std::same_as<typename Cache::locking_type, typename unlocked::state>;
    else
        return false;
}();

} // namespace detail

/// Reads from a cache's tier what prompts will need, by threads of its own, in order of arrival but for prompts that
/// begin alike, which follow one another: whoever computes goes on meanwhile with what is ready. What was read is known
/// to the cache and held by nobody; a tier that fails, is late or has nothing leaves a prompt to be computed. For a
/// cache of one thread, or without a tier, it does nothing.
template <class Cache>
class tier_prefetch {
public:
    /// Whether a prompt has been read. Whoever lets it go before its turn is not read for.
    using ticket = std::shared_ptr<const std::atomic<bool>>;

    /// `done` is called by a thread that reads, after each prompt.
    tier_prefetch(Cache& cache, std::function<void()> done) : cache_(cache), done_(std::move(done)) {}
    ~tier_prefetch() {
        {
            const std::lock_guard guard(lock_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread& each : readers_)
            each.join();
    }
    tier_prefetch(const tier_prefetch&) = delete;
    tier_prefetch& operator=(const tier_prefetch&) = delete;

    /// Has a prompt read, if the tier might have what memory has not; else there is no ticket. Throws: bad_alloc,
    /// system_error.
    [[nodiscard]] ticket ask(std::span<const token_id> prompt) {
        if constexpr (detail::prefetches<Cache>) {
            if (!cache_.tier_may_know(prompt))
                return nullptr;
            auto over = std::make_shared<std::atomic<bool>>(false);
            const std::lock_guard guard(lock_);
            waiting_.push_back({{prompt.begin(), prompt.end()}, over});
            if (readers_.size() < std::min(most_readers, waiting_.size() + under_way_.size()))
                readers_.emplace_back([this] { run(); });
            wake_.notify_one();
            return over;
        } else {
            static_cast<void>(prompt);
            return nullptr;
        }
    }

    [[nodiscard]] static bool over(const ticket& of) noexcept { return of == nullptr || *of; }

    /// Waits for what is being read, which has pages until it is known; nothing is read from then on,
    void hold() {
        std::unique_lock guard(lock_);
        held_ = true;
        quiet_.wait(guard, [this] { return under_way_.empty(); });
    }
    /// until it may go on.
    void release() {
        {
            const std::lock_guard guard(lock_);
            held_ = false;
        }
        wake_.notify_all();
    }

private:
    static constexpr std::size_t most_readers = 2; // a store of few connections has others to serve

    struct wanted {
        std::vector<token_id> tokens = {};
        std::shared_ptr<std::atomic<bool>> over = {};
    };
    using wanted_list = std::list<wanted>;

    // The first prompt that begins with another page than all that are being read.
    [[nodiscard]] typename wanted_list::iterator next() {
        if (held_)
            return waiting_.end();
        const auto alike = [&](const wanted& a, const wanted& b) {
            const std::size_t page = cache_.shape().tokens; // each has one
            return std::ranges::equal(std::span(a.tokens).first(page), std::span(b.tokens).first(page));
        };
        return std::ranges::find_if(waiting_, [&](const wanted& one) {
            return std::ranges::none_of(under_way_, [&](const wanted& other) { return alike(one, other); });
        });
    }

    void run() {
        std::unique_lock guard(lock_);
        for (;;) {
            auto one = waiting_.end();
            wake_.wait(guard, [&] { return stop_ || (one = next()) != waiting_.end(); });
            if (stop_)
                return;
            under_way_.splice(under_way_.end(), waiting_, one);
            guard.unlock();
            if (one->over.use_count() > 1)
                read(one->tokens);
            *one->over = true;
            done_();
            guard.lock();
            under_way_.erase(one);
            quiet_.notify_all();
            wake_.notify_all(); // for those that begin alike
        }
    }

    void read(std::span<const token_id> tokens) noexcept {
        if constexpr (detail::prefetches<Cache>) {
            try {
                static_cast<void>(cache_.prefetch(tokens));
            } catch (const std::bad_alloc&) { // it is computed, then
            }
        }
    }

    Cache& cache_;
    std::function<void()> done_;
    std::mutex lock_; // of all that follows
    std::condition_variable wake_, quiet_;
    wanted_list waiting_, under_way_;
    bool stop_ = false, held_ = false;
    std::vector<std::thread> readers_;
};

} // namespace kvcache
