// SPDX-License-Identifier: MIT
// Continuous batching: eight requests share an engine whose blocks do not suffice for all. A request that finds no
// block takes those of the request that came last; that one waits and continues later, with what is still cached.
// Requests with a common prefix compute it once. Every answer has the tokens that it has alone. test:
#include <kvcache/cache.hpp>
#include <kvcache/cache/block_tables.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iostream>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "support/guarded.hpp"
#include "support/own_engine.hpp"

namespace {

using tokens = std::vector<kvcache::token_id>;
using cache = kvcache::cache<kvcache::storage::external>;
using support::own_engine;

constexpr std::size_t new_tokens = 24;

struct request {
    std::size_t number;
    tokens prompt, answer = {};
    std::optional<cache::acquired> held = {}; // while it runs
};

class scheduler {
public:
    scheduler(own_engine& engine, std::size_t blocks)
        : engine_(engine),
          cache_(kvcache::make_cache(
              {.shape = {.tokens = own_engine::block_tokens}, .limit = {.pages = blocks}, .merge_equal_pages = false},
              kvcache::storage::external{
                  .copy = [this](auto from, auto to) { return engine_.copy_block(from, to); }})) {}

    void submit(request one) { waiting_.push_back(std::move(one)); }

    /// One step: admits what fits, runs each request of the batch, and returns those that are done.
    std::vector<request> step() {
        admit();
        std::vector<request> done;
        for (std::size_t i = 0; i < running_.size(); ++i) {
            request& one = running_[i];
            while (i < running_.size() && one.held->lease.rows() == 0 && !reserve(one))
                preempt(); // the youngest; perhaps this one
            if (i < running_.size())
                run(one);
        }
        for (std::size_t i = running_.size(); i-- > 0;)
            if (running_[i].answer.size() == new_tokens) {
                running_[i].held.reset(); // its blocks stay cached until they are needed
                done.push_back(std::move(running_[i]));
                running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
            }
        return done;
    }

    [[nodiscard]] bool idle() const { return waiting_.empty() && running_.empty(); }
    [[nodiscard]] bool sound() const { return bool(cache_.check()); }
    std::size_t preempted = 0, postponed = 0, computed = 0;

private:
    // Takes waiting requests into the batch while there are blocks. One whose prefix is being computed waits for it.
    void admit() {
        while (!waiting_.empty()) {
            request& next = waiting_.front();
            tokens known = next.prompt; // with what it had answered before it was preempted
            known.insert(known.end(), next.answer.begin(), next.answer.end());
            auto held = cache_.acquire(known, {.pending = kvcache::pending_prefix::refuse});
            if (!held) {
                postponed += held.error().code == kvcache::error_code::pending;
                return;
            }
            next.held.emplace(std::move(*held));
            running_.push_back(std::move(next));
            waiting_.pop_front();
        }
    }
    // Reserves the row of the last token that was answered.
    bool reserve(request& one) {
        auto lease = cache_.reserve(one.held->sequence, 1);
        if (lease)
            one.held->lease = std::move(*lease);
        return bool(lease);
    }
    void preempt() {
        ++preempted;
        running_.back().held.reset();
        waiting_.push_front(std::move(running_.back()));
        running_.pop_back();
    }
    void run(request& one) {
        cache::acquired& held = *one.held;
        tokens known = one.prompt;
        known.insert(known.end(), one.answer.begin(), one.answer.end());
        const auto rows = std::span<const kvcache::token_id>(known).last(held.lease.rows());
        table_.clear();
        table_.append(held.lease.pages().table);
        const auto logits = engine_.run(rows, held.lease.first(), table_.blocks(0));
        held.lease.commit(rows);
        computed += rows.size();
        one.answer.push_back(kvcache::token_id(std::ranges::max_element(logits) - logits.begin()));
    }

    own_engine& engine_;
    cache cache_;
    kvcache::block_tables table_{own_engine::block_tokens};
    std::deque<request> waiting_;
    std::vector<request> running_; // in the order of arrival
};

tokens alone(const support::own_transformer& model, tokens prompt) {
    tokens answer;
    while (answer.size() < new_tokens) {
        const auto logits = model.logits_after(prompt);
        answer.push_back(kvcache::token_id(std::ranges::max_element(logits) - logits.begin()));
        prompt.push_back(answer.back());
    }
    return answer;
}

int program() {
    constexpr std::size_t blocks = 14, requests = 8;
    own_engine engine(blocks);
    scheduler all(engine, blocks);
    std::mt19937 dice(1);
    const auto more = [&](tokens prompt, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i)
            prompt.push_back(kvcache::token_id(dice() % support::own_transformer::vocabulary));
        return prompt;
    };
    const tokens common = more({}, 40);
    std::size_t prompts = 0;
    for (std::size_t number = 0; number < requests; ++number) {
        all.submit({number, more(number % 2 == 0 ? common : tokens{}, 10 + 3 * number)});
        prompts += (number % 2 == 0 ? common.size() : 0) + 10 + 3 * number;
    }
    bool right = true;
    std::size_t steps = 0;
    for (; !all.idle(); ++steps)
        for (const request& done : all.step()) {
            const bool same = done.answer == alone(engine.model(), done.prompt);
            right = right && same;
            std::cout << "request " << done.number << ": " << done.prompt.size() << " tokens and " << done.answer.size()
                      << " new ones, " << (same ? "as alone\n" : "OTHER TOKENS than alone\n");
        }
    std::cout << steps << " steps; " << all.preempted << " times a request gave its blocks to another, "
              << all.postponed << " times one waited for a prefix; " << all.computed << " tokens computed of "
              << prompts + requests * new_tokens << '\n';
    return right && all.preempted > 0 && all.postponed > 0 && all.sound() ? 0 : 1;
}

} // namespace

int main() {
    return support::guarded("11_batching", [&] { return program(); });
}
