// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/session/engine_request.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host.hpp"
#include "preparation.hpp"
#include "question.hpp"

namespace server {

/// The marked parts of a request: those that no cached chunk has are computed, each by itself, and registered, before
/// the request is. Its client waits.
template <class Layers>
class part_warmer : public std::enable_shared_from_this<part_warmer<Layers>> {
public:
    part_warmer(host<Layers>& at, kvcache::tenant tenant, std::uint64_t client)
        : at_(at), tenant_(std::move(tenant)), client_(client) {}

    /// Errors: those of the engine; cancelled.
    [[nodiscard]] kvcache::result<void> run(std::vector<std::vector<kvcache::token_id>> parts,
                                            std::chrono::steady_clock::time_point deadline,
                                            const request_watch& watch) {
        std::ranges::sort(parts);
        parts.erase(std::unique(parts.begin(), parts.end()), parts.end()); // Clang 14 has no ranges::unique
        for (auto& part : parts)
            if (!kvcache::chunk_reuse<store<Layers>>(at_.cache).contains(part, tenant_))
                if (auto asked = ask(std::move(part), deadline); !asked) {
                    cancel();
                    return asked;
                }
        std::unique_lock guard(lock_);
        while (!changed_.wait_for(guard, std::chrono::milliseconds(50), [&] { return ended_ == ids_.size(); })) {
            guard.unlock();
            const bool ends = watch();
            guard.lock();
            if (ends) {
                guard.unlock();
                cancel();
                return kvcache::error{kvcache::error_code::cancelled, "request", "the request was cancelled"};
            }
        }
        return failure_ ? kvcache::result<void>(*failure_) : kvcache::result<void>();
    }

private:
    [[nodiscard]] kvcache::result<void> ask(std::vector<kvcache::token_id> part,
                                            std::chrono::steady_clock::time_point deadline) {
        kvcache::engine_request<store<Layers>> request{.prompt = std::move(part),
                                                       .tenant = tenant_,
                                                       .client = client_,
                                                       .stop = {.max_tokens = 0},
                                                       .deadline = deadline,
                                                       .on_finish = [self = this->shared_from_this()](auto&& end) {
                                                           self->ended(std::forward<decltype(end)>(end));
                                                       }};
        auto id = at_.engine().submit(std::move(request));
        if (!id)
            return id.error();
        const std::lock_guard guard(lock_);
        ids_.push_back(*id);
        return {};
    }

    void cancel() {
        const std::lock_guard guard(lock_);
        for (const auto id : ids_)
            at_.engine().cancel(id);
    }

    // Called by the computing thread.
    void ended(kvcache::engine_outcome<store<Layers>>&& end) {
        const auto sequence =
            end.answers.empty() || end.failure ? std::nullopt : std::exchange(end.answers[0].sequence, std::nullopt);
        if (sequence && sequence->exact() == sequence->size() && sequence->size() > 0)
            (void)kvcache::chunk_reuse<store<Layers>>(at_.cache).add(*sequence, 0, sequence->size());
        const std::lock_guard guard(lock_);
        ++ended_;
        if (end.failure && !failure_)
            failure_ = end.failure;
        changed_.notify_one();
    }

    host<Layers>& at_;
    kvcache::tenant tenant_;
    std::uint64_t client_;
    std::mutex lock_;
    std::condition_variable changed_;
    std::vector<kvcache::request_id> ids_;
    std::size_t ended_ = 0;
    std::optional<kvcache::error> failure_;
};

} // namespace server
