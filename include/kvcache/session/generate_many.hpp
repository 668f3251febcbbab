// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/decode_state.hpp>
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

namespace kvcache { inline namespace KVCACHE_ABI {

/// Answers to several prompts, in the order of the prompts. A failed answer does not affect the others.
using timed_answers = std::vector<result<timed_answer>>;

namespace detail {

// The answers to a batch of prompts, decoded in shared forward passes.
template <class Cache, class Model>
class answers_together {
public:
    using ending = std::optional<result<timed_answer>>;

    answers_together(chunk_pipeline<Cache, Model>& pipeline, const sampler& sampling, const stop_criteria& stop)
        : pipeline_(pipeline), sampling_(sampling), stop_(stop), began_(std::chrono::steady_clock::now()) {}

    /// Prefills a prompt; its answer is written to `to`. Returns false, with nothing changed, if pages are short and
    /// other answers of the batch hold pages.
    [[nodiscard]] bool prefill(std::size_t prompt, std::span<const token_id> tokens, reuse_mode mode, ending& to) {
        auto filled = pipeline_.prefill(tokens, mode);
        if (!filled && filled.error().code == error_code::out_of_memory && !slots_.empty())
            return false;
        if (!filled) {
            to.emplace(filled.error());
            return true;
        }
        timed_answer made;
        made.counts = filled->counts;
        slots_.push_back({prompt, to, std::move(filled->sequence), std::move(made),
                          decode_state(sampling_, stop_, tokens, pipeline_.exact().max_positions())});
        slot& one = slots_.back();
        if (!one.under_way.over())
            say(one, row_of(std::as_const(filled->logits), 0));
        deliver_finished();
        return true;
    }

    /// Decodes all answers to their ends, one token of each per pass. Returns: the prompts preempted because pages
    /// were short.
    [[nodiscard]] std::vector<std::size_t> run() {
        std::vector<std::size_t> again;
        for (std::vector<batch_entry<Cache>> batch; !slots_.empty(); batch.clear()) {
            for (slot& one : slots_)
                batch.push_back({&one.sequence, {&one.made.ids.back(), 1}, logits_mode::last});
            const auto ran = pipeline_.exact().extend(batch, logits_);
            if (ran) {
                std::size_t row = 0;
                for (slot& one : slots_)
                    say(one, row_of(std::as_const(logits_), row++));
            } else if (ran.error().code == error_code::out_of_memory && slots_.size() > 1) {
                again.push_back(slots_.back().prompt);
                slots_.pop_back();
            } else {
                for (slot& one : slots_)
                    one.failed = ran.error();
            }
            deliver_finished();
        }
        return again;
    }

private:
    struct slot {
        std::size_t prompt;
        ending& to;
        typename Cache::sequence sequence;
        timed_answer made;
        decode_state under_way;
        std::optional<error> failed = {};
    };

    void say(slot& one, std::span<const float> logits) {
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

    // Delivers the answers that have ended.
    void deliver_finished() {
        slots_.remove_if([](slot& one) {
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

    chunk_pipeline<Cache, Model>& pipeline_;
    const sampler& sampling_;
    const stop_criteria& stop_;
    std::chrono::steady_clock::time_point began_;
    std::list<slot> slots_;
    matrix logits_;
};

} // namespace detail

/// Answers prompts, at most `max_sequences` at a time. Prompts with a common prefix are grouped and compute it once.
/// The answers are decoded in shared forward passes, each with the bits and tokens that it has alone. When pages are
/// short the last answer of a batch is preempted and computed later; a finished answer holds no pages. Times count
/// from the start of the prompt's batch. Errors, each in its prompt's result: those of chunk_pipeline::prefill.
/// Requires: max_sequences > 0.
template <class Cache, class Model>
[[nodiscard]] timed_answers
generate_many(chunk_pipeline<Cache, Model>& pipeline, std::span<const std::vector<token_id>> prompts, reuse_mode mode,
              const sampler& sampling, const stop_criteria& stop, std::size_t max_sequences) {
    expects(max_sequences > 0, "an answer needs a sequence");
    std::vector<std::size_t> left(prompts.size()); // in reverse order: the back is the next prompt
    std::iota(left.rbegin(), left.rend(), std::size_t{0});
    std::stable_sort(left.rbegin(), left.rend(), [&](std::size_t a, std::size_t b) { return prompts[a] < prompts[b]; });
    std::vector<std::optional<result<timed_answer>>> made(prompts.size());
    while (!left.empty()) {
        detail::answers_together<Cache, Model> batch(pipeline, sampling, stop);
        for (std::size_t taken = 0; taken < max_sequences && !left.empty(); ++taken) {
            if (!batch.prefill(left.back(), prompts[left.back()], mode, made[left.back()]))
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

/// Answers all prompts in one batch, as generate_many does.
template <class Cache, class Model>
[[nodiscard]] timed_answers generate_batch(chunk_pipeline<Cache, Model>& pipeline,
                                           std::span<const std::vector<token_id>> prompts, reuse_mode mode,
                                           const sampler& sampling, const stop_criteria& stop) {
    return generate_many(pipeline, prompts, mode, sampling, stop, std::max<std::size_t>(prompts.size(), 1));
}

}} // namespace kvcache
