// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <version>

// std::stop_token and what belongs to it, as kvcache::stop_token. libc++ has it since version 20.

#if defined(__cpp_lib_jthread)

#include <stop_token>

namespace kvcache { inline namespace KVCACHE_ABI {
using std::stop_callback;
using std::stop_source;
using std::stop_token;
}} // namespace kvcache

#else

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

struct stop_state {
    std::atomic<bool> requested{false};
    std::recursive_mutex lock; // a callback may end itself or another one
    std::vector<std::function<void()>*> callbacks;
};

} // namespace detail

/// As std::stop_token.
class stop_token {
public:
    stop_token() = default;
    explicit stop_token(std::shared_ptr<detail::stop_state> state) : state_(std::move(state)) {}
    [[nodiscard]] bool stop_requested() const noexcept { return state_ != nullptr && state_->requested.load(); }
    [[nodiscard]] bool stop_possible() const noexcept { return state_ != nullptr; }

private:
    template <class Callback>
    friend class stop_callback;
    std::shared_ptr<detail::stop_state> state_;
};

/// As std::stop_source.
class stop_source {
public:
    [[nodiscard]] stop_token get_token() const { return stop_token(state_); }
    [[nodiscard]] bool stop_requested() const noexcept { return state_->requested.load(); }
    bool request_stop() {
        const std::lock_guard guard(state_->lock);
        if (state_->requested.exchange(true))
            return false;
        while (!state_->callbacks.empty()) {
            std::function<void()>* const next = state_->callbacks.back();
            state_->callbacks.pop_back();
            (*next)();
        }
        return true;
    }

private:
    std::shared_ptr<detail::stop_state> state_ = std::make_shared<detail::stop_state>();
};

/// As std::stop_callback.
template <class Callback>
class stop_callback {
public:
    stop_callback(const stop_token& token, Callback call) : state_(token.state_), call_(std::move(call)) {
        if (state_ == nullptr)
            return;
        const std::lock_guard guard(state_->lock);
        if (state_->requested.load())
            call_();
        else
            state_->callbacks.push_back(&call_);
    }
    stop_callback(const stop_callback&) = delete;
    stop_callback& operator=(const stop_callback&) = delete;
    ~stop_callback() {
        if (state_ == nullptr)
            return;
        const std::lock_guard guard(state_->lock); // waits for a call in another thread
        state_->callbacks.erase(std::remove(state_->callbacks.begin(), state_->callbacks.end(), &call_),
                                state_->callbacks.end());
    }

private:
    std::shared_ptr<detail::stop_state> state_;
    std::function<void()> call_;
};

}} // namespace kvcache

#endif
