// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/locking/none.hpp>

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
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Whether a cache has a tier that another thread may read.
template <class Cache>
inline constexpr bool prefetches = [] {
    if constexpr (requires { Cache::has_tier; })
        return Cache::has_tier && !std::same_as<typename Cache::locking_type, typename locking::none::state>;
    else
        return false;
}();

} // namespace detail

/// Reads from a cache's tier what prompts will need, on its own threads. Prompts are read in order of arrival;
/// prompts with the same first page are read one after the other. Computation continues meanwhile with the prompts
/// that are ready. The pages read are cached but not in use. If the tier fails, is late or has no record, the prompt
/// is computed. For a cache of one thread, or without a tier, it does nothing.
template <class Cache>
class tier_prefetch {
public:
    /// Set when a prompt has been read. A prompt whose ticket is dropped before its turn is not read.
    using ticket = std::shared_ptr<const std::atomic<bool>>;

    /// `done` is called on a reader thread after each prompt.
    tier_prefetch(Cache& cache, std::function<void()> done) : cache_(cache), done_(std::move(done)) {}
    ~tier_prefetch() {
        {
            const std::lock_guard guard(lock_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread& each : reader_threads_)
            each.join();
    }
    tier_prefetch(const tier_prefetch&) = delete;
    tier_prefetch& operator=(const tier_prefetch&) = delete;

    /// Queues a prompt of a tenant for reading if the tier may hold pages that memory lacks; otherwise returns no
    /// ticket. Throws: bad_alloc, system_error.
    [[nodiscard]] ticket ask(std::span<const token_id> prompt, const tenant& of) {
        if constexpr (detail::prefetches<Cache>) {
            const std::size_t page = cache_.shape().tokens;
            if (is_null(cache_.tier()) || cache_.lookup(prompt, of).cached_tokens / page == prompt.size() / page)
                return nullptr;
            auto over = std::make_shared<std::atomic<bool>>(false);
            const std::lock_guard guard(lock_);
            waiting_.push_back({{prompt.begin(), prompt.end()}, of, over});
            if (reader_threads_.size() < std::min(most_readers, waiting_.size() + under_way_.size()))
                reader_threads_.emplace_back([this] { run(); });
            wake_.notify_one();
            return over;
        } else {
            static_cast<void>(prompt);
            static_cast<void>(of);
            return nullptr;
        }
    }

    [[nodiscard]] static bool over(const ticket& of) noexcept { return of == nullptr || *of; }

    /// Pauses reading, and waits for the reads under way, whose pages cannot be evicted before they end.
    void hold() {
        std::unique_lock guard(lock_);
        held_ = true;
        quiet_.wait(guard, [this] { return under_way_.empty(); });
    }
    /// Resumes reading after hold().
    void release() {
        {
            const std::lock_guard guard(lock_);
            held_ = false;
        }
        wake_.notify_all();
    }

private:
    static constexpr std::size_t most_readers = 2; // leaves connections of a small store for other requests

    struct wanted {
        std::vector<token_id> tokens = {};
        kvcache::tenant tenant = {};
        std::shared_ptr<std::atomic<bool>> over = {};
    };
    using wanted_list = std::list<wanted>;

    // Returns the first prompt whose first page differs from those of all reads under way.
    [[nodiscard]] typename wanted_list::iterator next() {
        if (held_)
            return waiting_.end();
        const auto alike = [&](const wanted& a, const wanted& b) {
            const std::size_t page = cache_.shape().tokens; // every prompt has at least one page
            return ranges::equal(std::span(a.tokens).first(page), std::span(b.tokens).first(page));
        };
        return ranges::find_if(waiting_, [&](const wanted& one) {
            return ranges::none_of(under_way_, [&](const wanted& other) { return alike(one, other); });
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
                read(*one);
            *one->over = true;
            done_();
            guard.lock();
            under_way_.erase(one);
            quiet_.notify_all();
            wake_.notify_all(); // for prompts with the same first page
        }
    }

    void read(const wanted& one) noexcept {
        if constexpr (detail::prefetches<Cache>) {
            try {
                static_cast<void>(cache_.prefetch(one.tokens, one.tenant));
            } catch (const std::bad_alloc&) { // without memory the prompt is computed
            }
        }
    }

    Cache& cache_;
    std::function<void()> done_;
    std::mutex lock_; // guards the members below
    std::condition_variable wake_, quiet_;
    wanted_list waiting_, under_way_;
    bool stop_ = false, held_ = false;
    std::vector<std::thread> reader_threads_;
};

}} // namespace kvcache
