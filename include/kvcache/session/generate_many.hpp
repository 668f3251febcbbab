// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/answering.hpp>
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <list>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Answers to several prompts, in the prompts' order; one that could not be had does not keep the others.
using timed_answers = std::vector<result<timed_answer>>;

namespace detail {

// Prompts of a batch, whose answers are said in shared forward passes.
template <class Cache, class Model>
class answers_together {
public:
    using ending = std::optional<result<timed_answer>>;

    answers_together(chunk_pipeline<Cache, Model>& through, const sampler& draw, const stopping& until)
        : through_(through), draw_(draw), until_(until), began_(std::chrono::steady_clock::now()) {}

    /// Runs a prompt, whose answer goes to `to`. False, and nothing has changed, if pages are short that others of the
    /// batch hold.
    [[nodiscard]] bool feed(std::size_t prompt, std::span<const token_id> tokens, reuse_mode mode, ending& to) {
        auto fed = through_.feed(tokens, mode);
        if (!fed && fed.error().code == error_code::out_of_memory && !lanes_.empty())
            return false;
        if (!fed) {
            to.emplace(fed.error());
            return true;
        }
        timed_answer made;
        made.counts = fed->counts;
        lanes_.push_back({prompt, to, std::move(fed->sequence), std::move(made),
                          answering(draw_, until_, tokens, through_.exact().max_positions())});
        lane& one = lanes_.back();
        if (!one.under_way.over())
            say(one, row_of(std::as_const(fed->logits), 0));
        settle();
        return true;
    }

    /// Says all answers to their ends, a token of each in a pass. Returns: the prompts that made way for others of the
    /// batch, because pages were short.
    [[nodiscard]] std::vector<std::size_t> run() {
        std::vector<std::size_t> again;
        for (std::vector<extension<Cache>> batch; !lanes_.empty(); batch.clear()) {
            for (lane& one : lanes_)
                batch.push_back({&one.sequence, {&one.made.ids.back(), 1}, logits_of::last});
            const auto ran = through_.exact().extend(batch, logits_);
            if (ran) {
                std::size_t row = 0;
                for (lane& one : lanes_)
                    say(one, row_of(std::as_const(logits_), row++));
            } else if (ran.error().code == error_code::out_of_memory && lanes_.size() > 1) {
                again.push_back(lanes_.back().prompt);
                lanes_.pop_back();
            } else {
                for (lane& one : lanes_)
                    one.failed = ran.error();
            }
            settle();
        }
        return again;
    }

private:
    struct lane {
        std::size_t prompt;
        ending& to;
        typename Cache::sequence sequence;
        timed_answer made;
        answering under_way;
        std::optional<error> failed = {};
    };

    void say(lane& one, std::span<const float> logits) {
        const auto token = one.under_way.next(logits);
        if (!token) {
            one.failed = token.error();
            return;
        }
        one.made.ids.push_back(*token);
        one.made.total = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
        if (one.made.ids.size() == 1)
            one.made.first_token = one.made.total;
    }

    // Hands out what has ended.
    void settle() {
        lanes_.remove_if([](lane& one) {
            if (!one.failed && !one.under_way.over())
                return false;
            one.made.stopped = one.under_way.stopped();
            if (one.failed)
                one.to.emplace(*one.failed);
            else
                one.to.emplace(std::move(one.made));
            return true;
        });
    }

    chunk_pipeline<Cache, Model>& through_;
    const sampler& draw_;
    const stopping& until_;
    std::chrono::steady_clock::time_point began_;
    std::list<lane> lanes_;
    matrix logits_;
};

} // namespace detail

/// Answers prompts, at most `lanes` at a time: those that begin alike come together and run what they share once, and
/// the answers are said in shared forward passes, each with the bits and tokens that it has alone. Where pages are
/// short the last of a batch makes way, and is answered later; one that was answered keeps none. Seconds count from the
/// beginning of the prompt's batch. Errors, each in its prompt's place: those of chunk_pipeline::feed. Requires: lanes
/// > 0.
template <class Cache, class Model>
[[nodiscard]] timed_answers generate_many(chunk_pipeline<Cache, Model>& through,
                                          std::span<const std::vector<token_id>> prompts, reuse_mode mode,
                                          const sampler& draw, const stopping& until, std::size_t lanes) {
    expects(lanes > 0, "an answer needs a lane");
    std::vector<std::size_t> left(prompts.size()); // the next one last
    std::iota(left.rbegin(), left.rend(), std::size_t{0});
    std::stable_sort(left.rbegin(), left.rend(), [&](std::size_t a, std::size_t b) { return prompts[a] < prompts[b]; });
    std::vector<std::optional<result<timed_answer>>> made(prompts.size());
    while (!left.empty()) {
        detail::answers_together<Cache, Model> batch(through, draw, until);
        for (std::size_t taken = 0; taken < lanes && !left.empty(); ++taken) {
            if (!batch.feed(left.back(), prompts[left.back()], mode, made[left.back()]))
                break;
            left.pop_back();
        }
        const auto again = batch.run();
        left.insert(left.end(), again.begin(), again.end());
    }
    timed_answers all;
    all.reserve(made.size());
    for (auto& one : made)
        all.push_back(std::move(*one));
    return all;
}

/// Answers prompts all at once, as above.
template <class Cache, class Model>
[[nodiscard]] timed_answers generate_batch(chunk_pipeline<Cache, Model>& through,
                                           std::span<const std::vector<token_id>> prompts, reuse_mode mode,
                                           const sampler& draw, const stopping& until) {
    return generate_many(through, prompts, mode, draw, until, std::max<std::size_t>(prompts.size(), 1));
}

} // namespace kvcache
