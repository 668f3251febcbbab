// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/platform/stop_token.hpp>
#include <kvcache/session/client_shares.hpp>
#include <kvcache/session/engine_request.hpp>
#include <kvcache/session/engine_schedule.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/tier_prefetch.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Answers many requests in shared forward passes (continuous batching). A step runs one row of every answer, as far as
/// its rows reach; the remaining rows go to prompts, in chunks, so a long prompt never stalls an answer. Clients get
/// fair shares; the requests of one go by priority, then by when their first token is due, then in order of arrival.
/// Common prefixes are computed once, even for requests that arrive together. When pages run out the last request of
/// the client with the most answers is preempted and runs again later. Batching, reuse and drafting do not change a bit
/// of an answer. With a cache under locking::mutex, the tier is read for a prompt while others run (tier_prefetch); a
/// request that waits for the tier is overtaken.
///
/// submit, cancel and stats may be called from any thread; step and run from one. Requires: the cache, the model and
/// the pipeline outlive the engine; nothing else uses the pipeline; a cache that is used elsewhere too has
/// locking::mutex.
template <class Cache, class Model>
class engine {
public:
    using clock = std::chrono::steady_clock;
    using request = engine_request<Cache>;

    engine(Cache& cache, const Model& model, pipeline<Cache, Model>& pipeline, engine_limits limits = {})
        : model_(model),
          limits_(limits),
          schedule_(cache, model, pipeline, limits),
          debts_(limits.client_tokens_per_second),
          ahead_(cache, [this] {
              const std::lock_guard guard(lock_);
              arrived_.notify_one();
          }) {
        require(limits.max_batch_tokens > 1 && limits.shared_batch_tokens > 1 && limits.max_sequences > 0,
                "an engine has a row for an answer and one for a prompt");
        set_relief({});
    }

    /// Sets the function to call when pages are short. It frees some and returns whether it did; owners of idle
    /// sessions set it.
    void set_relief(std::function<bool()> relief) {
        schedule_.set_relief([this, own = std::move(relief)] {
            if constexpr (detail::prefetches<Cache>) // a prefetch holds pages until it is finished
                if (!std::exchange(held_, true)) {
                    ahead_.hold();
                    return true;
                }
            return (own && own()) || forget_known();
        });
    }

    /// Queues a request. Errors: out_of_range for a request that can never run; out_of_memory if the queue is full;
    /// cancelled after close. `done` is not called after an error. Requires: the request names a tenant of the cache,
    /// if the cache has tenants.
    [[nodiscard]] result<request_id> submit(request asked) {
        if (auto valid = check(asked); !valid)
            return valid.error();
        auto made = std::make_unique<job>(request_id{}, std::move(asked), model_.max_positions());
        read_ahead(*made);
        const std::lock_guard guard(lock_);
        if (closed_)
            return error{error_code::cancelled, "engine", "the engine takes no more requests"};
        const std::uint64_t client = made->request.client;
        if (stats_.waiting >= limits_.waiting) {
            // A client that has fewer waiting requests takes the place of the last one of the client with the most.
            const auto [heaviest, most] = waiting_.most();
            ++stats_.refused;
            if (waiting_.of(client) + 1 >= most)
                return queue_is_full();
            displaced_.add(heaviest);
            waiting_.remove(heaviest);
            --stats_.waiting;
        }
        made->id = request_id{next_++};
        inbox_.push_back(std::move(made));
        waiting_.add(client);
        ++stats_.waiting;
        arrived_.notify_one();
        return inbox_.back()->id;
    }

    /// Ends a request at the next step. Has no effect if it has ended.
    void cancel(request_id id) {
        const std::lock_guard guard(lock_);
        cancelled_.push_back(id);
        arrived_.notify_one();
    }

    [[nodiscard]] engine_stats stats() const {
        const std::lock_guard guard(lock_);
        return stats_;
    }

    /// Runs one forward pass and handles its results. Returns: whether there is more to do. If memory is short an
    /// answer fails; the others continue.
    bool step(clock::time_point now) {
        take_in(now);
        debts_.repay(now);
        admit();
        if (schedule_.running().empty() && !queue_.empty())
            wait_in_queue();
        schedule_.run();
        if (std::exchange(held_, false))
            ahead_.release();
        const bool gave_way = queue_again() > 0;
        crowded_ = gave_way || crowded_;
        deliver_finished();
        if (gave_way && schedule_.running().empty())
            wait_for_host();
        return !schedule_.running().empty() || !queue_.empty();
    }

    /// Steps until a stop is requested, and sleeps while there is nothing to do. Unfinished requests are cancelled
    /// then.
    void run(const stop_token& stop) {
        const stop_callback wake(stop, [this] {
            const std::lock_guard guard(lock_);
            arrived_.notify_one();
        });
        while (!stop.stop_requested())
            if (!step(clock::now())) {
                std::unique_lock guard(lock_);
                arrived_.wait(guard, [&] { return stop.stop_requested() || !inbox_.empty() || !cancelled_.empty(); });
            }
        close();
    }

    /// Cancels all requests, and refuses further ones. Only for the thread that steps.
    void close() {
        {
            const std::lock_guard guard(lock_);
            closed_ = true;
        }
        take_in(clock::time_point::min());
        for (auto* list : {&schedule_.running(), &queue_})
            for (auto& each : *list)
                each->end(finish_reason::cancelled);
        deliver_finished();
    }

private:
    using job = detail::engine_job<Cache>;

    [[nodiscard]] result<void> check(const request& asked) const {
        const auto refuse = [](const char* field, std::string words) {
            return error{error_code::out_of_range, field, std::move(words)};
        };
        schedule_.require_tenant(asked.tenant);
        if (auto valid = detail::check_tokens(asked.prompt, model_.vocabulary(), "prompt"); !valid)
            return valid;
        if (asked.prompt.size() > model_.max_positions())
            return refuse("max_positions", "the maximum context length is " + std::to_string(model_.max_positions()) +
                                               " tokens; the prompt takes " + std::to_string(asked.prompt.size()));
        if (asked.known && (asked.known->size() >= asked.prompt.size() ||
                            !ranges::equal(asked.known->tokens(), std::span(asked.prompt).first(asked.known->size()))))
            return refuse("known", "a known sequence holds the first tokens of the prompt, and not all");
        if (asked.mode == reuse_mode::chunks)
            if (auto can = detail::places_chunks<Cache>(model_, asked.recompute); !can)
                return can;
        if (asked.choices == 0 || asked.choices > most_answers())
            return refuse("n", "1 to " + std::to_string(most_answers()) + " answers can be had");
        return asked.sampling.check(model_.vocabulary());
    }

    // Maximum answers of a client at once.
    [[nodiscard]] std::size_t most_answers() const {
        return limits_.client_sequences == 0 ? limits_.max_sequences
                                             : std::min(limits_.client_sequences, limits_.max_sequences);
    }

    [[nodiscard]] error queue_is_full() const {
        return {error_code::out_of_memory, "queue",
                "the queue is full: " + std::to_string(limits_.waiting) + " requests wait"};
    }

    // Takes in new requests, cancellations and expired deadlines.
    void take_in(clock::time_point now) {
        std::vector<request_id> cancelled;
        detail::client_counts displaced;
        {
            const std::lock_guard guard(lock_);
            for (auto& each : inbox_)
                queue_.push_back(std::move(each));
            inbox_.clear();
            cancelled.swap(cancelled_);
            std::swap(displaced, displaced_);
        }
        displaced.for_each([&](std::uint64_t client, std::size_t count) {
            for (auto each = queue_.rbegin(); each != queue_.rend() && count > 0; ++each)
                if ((*each)->request.client == client && !(*each)->over() && !(*each)->counted) { // it has not begun
                    (*each)->fail(queue_is_full());
                    --count;
                }
        });
        for (auto* list : {&schedule_.running(), &queue_})
            for (auto& each : *list) {
                recent_.note(each->request.client, now);
                if (ranges::find(cancelled, each->id) != cancelled.end())
                    each->end(finish_reason::cancelled);
                if (each->request.deadline && now >= *each->request.deadline)
                    each->end(finish_reason::expired);
            }
        schedule_.limit_rows(recent_.several(now) ? limits_.shared_batch_tokens : limits_.max_batch_tokens);
    }

    // Starts reading the tier for a request, unless its own sequence already holds its pages.
    void read_ahead(job& each) noexcept {
        const std::size_t page = schedule_.page_tokens(), wanted = each.request.prompt.size();
        if (each.over() || each.request.score_prompt ||
            (each.request.known && each.request.known->size() / page == wanted / page))
            return;
        try {
            each.ahead = ahead_.ask(each.slots.front().tokens, each.request.tenant);
        } catch (const std::exception&) { // without memory or a thread the prompt is computed
            each.ahead = nullptr;
        }
    }

    // Whether a request may begin, as far as the limits of its client and the tier go.
    [[nodiscard]] bool may_begin(const job& each, const detail::client_counts& answers) const {
        return !each.over() && tier_prefetch<Cache>::over(each.ahead) &&
               (each.charged > 0 || !debts_.owes(each.request.client)) &&
               answers.of(each.request.client) + each.slots.size() <= most_answers();
    }

    // Admits queued requests while there are free answer slots: those of the client with the fewest answers first, in
    // the order of its requests. If there are none, the client with the most answers gives up to a client its share of
    // them. A preempted request waits until another request ends, unless its client has no answer and another one
    // several. A request that waits for the tier is overtaken.
    void admit() {
        detail::client_counts answers = schedule_.answers(), clients = answers;
        std::size_t slots = 0;
        answers.for_each([&](std::uint64_t, std::size_t count) { slots += count; });
        for (const auto& each : queue_)
            clients.add(each->request.client);
        const std::size_t share = limits_.max_sequences / std::max<std::size_t>(clients.clients(), 1);
        while (true) {
            auto next = queue_.end(); // one that has ended meanwhile is told so where it is
            for (auto each = queue_.begin(); each != queue_.end(); ++each)
                if (may_begin(**each, answers) &&
                    (!crowded_ || (answers.of((*each)->request.client) == 0 && answers.most().second > 1)) &&
                    (next == queue_.end() || goes_first(**each, **next, answers)))
                    next = each;
            if (next == queue_.end())
                return;
            const std::size_t wanted = (*next)->slots.size();
            const std::uint64_t client = (*next)->request.client;
            const request_id chosen = (*next)->id;
            while (slots + wanted > limits_.max_sequences) {
                const auto [heaviest, most] = answers.most();
                if (heaviest == client || most <= share || answers.of(client) + wanted > share)
                    return;
                slots -= schedule_.make_way(heaviest);
                answers = schedule_.answers();
                queue_again();
                next = ranges::find_if(queue_, [&](const auto& each) { return each->id == chosen; });
            }
            slots += wanted;
            answers.add(client, wanted);
            if ((*next)->charged == 0) {
                (*next)->charged = (*next)->request.prompt.size();
                debts_.charge(client, static_cast<double>((*next)->charged));
            }
            schedule_.running().push_back(std::move(*next));
            queue_.erase(next);
        }
    }

    // Whether a queued request is admitted before another one.
    [[nodiscard]] static bool goes_first(const job& one, const job& other, const detail::client_counts& answers) {
        const std::uint64_t client = one.request.client, others = other.request.client;
        return client == others ? one.goes_before(other) : answers.of(client) < answers.of(others);
    }

    // Waits because every request waits for the tier or for its client's limit: until a read ends, or a request arrives
    // or is cancelled, at most 20 ms.
    void wait_in_queue() {
        std::unique_lock guard(lock_);
        arrived_.wait_for(guard, std::chrono::milliseconds(20), [this] {
            return !inbox_.empty() || !cancelled_.empty() ||
                   ranges::any_of(queue_, [this](const auto& each) { return each->over() || may_begin(*each, {}); });
        });
    }

    // Releases the sequence that the last waiting request continues from; the request finds those tokens in the cache,
    // or computes them. Returns whether there was one.
    bool forget_known() {
        std::optional<typename Cache::sequence> held;
        {
            const std::lock_guard guard(lock_);
            for (auto each = inbox_.rbegin(); each != inbox_.rend() && !held; ++each)
                held.swap((*each)->request.known);
        }
        for (auto each = queue_.rbegin(); each != queue_.rend() && !held; ++each)
            held.swap((*each)->request.known);
        return held.has_value();
    }

    // Waits a moment because the only request lacks pages that the host holds.
    void wait_for_host() {
        std::unique_lock guard(lock_);
        arrived_.wait_for(guard, std::chrono::milliseconds(1));
    }

    // Queues preempted requests again at their place in the order of arrival. Returns their number.
    std::size_t queue_again() {
        const std::size_t many = schedule_.preempted().size();
        for (auto& each : schedule_.preempted()) {
            read_ahead(*each);
            const auto later = ranges::find_if(queue_, [&](const auto& other) { return other->id > each->id; });
            queue_.insert(later, std::move(each));
        }
        schedule_.preempted().clear();
        const std::lock_guard guard(lock_);
        stats_.preempted += many;
        return many;
    }

    // Delivers the outcome of ended requests.
    void deliver_finished() {
        std::vector<std::unique_ptr<job>> over;
        for (auto* list : {&schedule_.running(), &queue_}) {
            const auto ended =
                std::stable_partition(list->begin(), list->end(), [](const auto& each) { return !each->over(); });
            std::move(ended, list->end(), std::back_inserter(over));
            list->erase(ended, list->end());
        }
        if (!over.empty() || schedule_.running().empty())
            crowded_ = false;
        {
            const std::lock_guard guard(lock_);
            ++stats_.steps;
            stats_.rows = schedule_.rows();
            stats_.waiting = queue_.size() + inbox_.size();
            waiting_.clear();
            for (const auto& each : queue_)
                waiting_.add(each->request.client);
            for (const auto& each : inbox_)
                waiting_.add(each->request.client);
            stats_.running = schedule_.running().size();
            stats_.finished += over.size();
            for (const auto& each : over) {
                stats_.reused += each->outcome.reused;
                stats_.prefilled += each->outcome.prefilled;
                stats_.approximate += each->outcome.approximate;
                stats_.recomputed += each->outcome.recomputed;
                stats_.drafted += each->outcome.drafted;
                stats_.accepted += each->outcome.accepted;
                std::size_t generated = 0;
                for (const auto& one : each->slots)
                    generated += each->generated(one);
                stats_.generated += generated;
                stats_.on_time += each->late && !*each->late;
                stats_.late += each->late && *each->late;
                if (each->charged > 0) { // at last for what was computed; what preemptions repeat is not its doing
                    const auto& done = each->outcome;
                    const std::size_t ran = std::min(done.prefilled + done.recomputed, each->request.prompt.size());
                    debts_.charge(each->request.client,
                                  static_cast<double>(ran + generated) - static_cast<double>(each->charged));
                }
            }
        }
        for (auto& each : over)
            each->tell();
    }

    const Model& model_;
    engine_limits limits_;

    // Used only by the thread that steps.
    detail::engine_schedule<Cache, Model> schedule_;
    std::deque<std::unique_ptr<job>> queue_; // in order of arrival
    bool crowded_ = false;                   // a request was preempted, and none has ended since
    detail::token_debts debts_;
    detail::recent_clients recent_;
    bool held_ = false; // pages are short: nothing is prefetched until the step ends

    // Shared by all threads; guarded by lock_.
    mutable std::mutex lock_;
    std::condition_variable arrived_;
    std::vector<std::unique_ptr<job>> inbox_;
    detail::client_counts waiting_;   // by client: requests that wait
    detail::client_counts displaced_; // by client: waiting requests that are to make place for another client's
    std::vector<request_id> cancelled_;
    engine_stats stats_;
    std::uint64_t next_ = 0;
    bool closed_ = false;

    tier_prefetch<Cache> ahead_;
};

}} // namespace kvcache
