// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/drafter.hpp>
#include <kvcache/session/engine_request.hpp>
#include <kvcache/session/engine_splice.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/session/selective_prefill.hpp>
#include <kvcache/session/tier_prefetch.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Whether chunks can be placed over a cache and with a model, as a policy says. Errors: unsupported.
template <class Cache, class Model>
[[nodiscard]] result<void> places_chunks([[maybe_unused]] const Model& model,
                                         [[maybe_unused]] const any_recompute& policy) {
    if constexpr (!knows_chunks<Cache>)
        return error{error_code::unsupported, "index", "the cache's index does not know chunks: index::chunk does"};
    else {
        if (const auto opened = policy.open({}); opened.judges()) {
            if constexpr (!selective_prefill<Cache, Model>::can_judge)
                return error{error_code::unsupported, "recompute", "the model does not show its keys and values"};
            else if (opened.check_layer() >= model.layers().size())
                return error{error_code::unsupported, "recompute", "the model has too few layers to compare"};
        }
        return keys_can_move(model);
    }
}

/// An answer being generated: its tokens, and the sequence that holds the first of them.
template <class Cache>
struct engine_slot {
    std::vector<token_id> tokens = {}; // prompt, then the answer so far
    std::optional<typename Cache::sequence> sequence = {};
    std::conditional_t<knows_chunks<Cache>, engine_splice<Cache>, no_splice> splice = {};
    sampler sampling = {};
    token_counts counts = {};
    std::optional<finish_reason> ended = {};
    std::vector<std::size_t> snapshots = {}; // where its prompt leaves them

    // Rows of the current step.
    std::size_t rows = 0;               // number of tokens
    std::vector<token_id> drafted = {}; // the last token and the drafted tokens after it; empty without a draft

    [[nodiscard]] std::size_t held() const { return sequence ? sequence->size() : 0; }
    [[nodiscard]] std::size_t pending() const { return tokens.size() - held(); }
    [[nodiscard]] bool active() const { return !ended && sequence.has_value(); }

    /// Rows of the step that has just run.
    std::size_t run_rows = 0;
    /// The last step in which it had rows.
    std::size_t last_step = 0;

    /// Gives back its pages.
    void release() noexcept {
        splice.reset();
        sequence.reset();
    }

    /// Returns the tokens that run in this step.
    [[nodiscard]] std::span<const token_id> run() const {
        if constexpr (knows_chunks<Cache>)
            if (splice.placed())
                return splice.ids().first(rows);
        return drafted.empty() ? std::span(tokens).subspan(held(), rows) : std::span<const token_id>(drafted);
    }
};

/// A running request.
template <class Cache>
struct engine_job {
    request_id id = {};
    engine_request<Cache> request = {};
    std::size_t most = 0; // maximum tokens of an answer
    std::vector<engine_slot<Cache>> slots = {};
    engine_outcome<Cache> outcome = {};
    std::optional<std::chrono::steady_clock::time_point> due = {};         // of the first token
    std::optional<bool> late = {};                                         // whether it came later
    std::optional<std::chrono::steady_clock::time_point> lacks_pages = {}; // since when, although it runs alone
    std::size_t charged = 0;                          // tokens that its client owed at its beginning
    bool counted = false;                             // `reused` is recorded
    typename tier_prefetch<Cache>::ticket ahead = {}; // the prefetch it waits for

    engine_job(request_id name, engine_request<Cache> asked, std::size_t max_positions)
        : id(name), request(std::move(asked)) {
        if (request.first_token_target)
            due = std::chrono::steady_clock::now() + *request.first_token_target;
        most = std::min(request.stop.max_tokens, max_positions - request.prompt.size() + 1);
        slots.resize(request.choices);
        if (request.score_prompt && !request.prompt.empty())
            outcome.prompt.push_back({.token = request.prompt.front()});
        for (auto& slot : slots) {
            slot.tokens = request.prompt;
            slot.sampling = request.sampling;
            slot.sampling.choice += static_cast<std::uint64_t>(&slot - slots.data());
            if (request.sampling.penalises())
                slot.counts = token_counts(request.prompt);
        }
    }

    /// Whether it goes before another request of its client.
    [[nodiscard]] bool goes_before(const engine_job& other) const {
        constexpr auto never = std::chrono::steady_clock::time_point::max();
        return std::tuple(request.priority, due.value_or(never), id) <
               std::tuple(other.request.priority, other.due.value_or(never), other.id);
    }

    [[nodiscard]] std::size_t generated(const engine_slot<Cache>& slot) const {
        return slot.tokens.size() - request.prompt.size();
    }
    [[nodiscard]] bool over() const {
        return ranges::all_of(slots, [](const auto& slot) { return slot.ended.has_value(); });
    }
    /// Returns whether an answer takes its prompt from the first answer, once that has run it.
    [[nodiscard]] bool follows(std::size_t choice) const { return choice > 0 && generated(slots[choice]) == 0; }

    /// Whether an answer runs the prompt to score it.
    [[nodiscard]] bool scores_prompt(std::size_t choice) const {
        return request.score_prompt && choice == 0 && outcome.prompt.size() < request.prompt.size();
    }
    /// Scores tokens of the prompt with the logits of `rows` rows from position `before` on, the first of which is row
    /// `first`.
    void score_prompt(const matrix& logits, std::size_t first, std::size_t before, std::size_t rows) {
        for (std::size_t i = 0; i < rows && scores_prompt(0); ++i) {
            generated_token token{.index = before + i + 1};
            if (token.index != outcome.prompt.size())
                continue; // scored before a preemption
            if (auto finite = detail::check_finite(row_of(logits, first + i)); !finite)
                return fail(finite.error());
            token.token = request.prompt[token.index];
            score(token, row_of(logits, first + i));
            outcome.prompt.push_back(std::move(token));
        }
    }

    void end(finish_reason why) {
        for (auto& slot : slots)
            if (!slot.ended)
                slot.ended = why;
    }
    void fail(error reason) {
        end(finish_reason::failed);
        if (!outcome.failure)
            outcome.failure = std::move(reason);
    }

    /// Drafts the next tokens of a slot, at most `rows`. What a drafter says is cut at a token outside the vocabulary.
    void draft(engine_slot<Cache>& slot, std::size_t rows, std::size_t vocabulary) const {
        slot.drafted.clear();
        const std::size_t left = most - generated(slot); // the last of them is never run
        const std::size_t wanted = left < 2 ? 0 : std::min({request.draft, rows, left - 1});
        if (wanted == 0)
            return;
        std::vector<token_id> guess;
        const draft_question question{slot.tokens, wanted, slot.sampling, generated(slot)};
        if (request.drafter)
            request.drafter(question, guess);
        else
            draft_by_lookup(question, guess);
        const auto end = ranges::find_if(guess, [&](token_id token) {
            return index_of(token) < 0 || static_cast<std::size_t>(index_of(token)) >= vocabulary;
        });
        guess.resize(std::min(static_cast<std::size_t>(end - guess.begin()), wanted));
        if (guess.empty())
            return;
        slot.drafted.push_back(slot.tokens.back());
        slot.drafted.insert(slot.drafted.end(), guess.begin(), guess.end());
    }

    /// Handles the logits of a slot after its rows have run. Row `first` of `logits` is the first one requested for
    /// the slot.
    void sample(std::size_t choice, const matrix& logits, std::size_t first) {
        auto& slot = slots[choice];
        const std::size_t drafts = slot.drafted.empty() ? 0 : slot.drafted.size() - 1;
        const std::vector<token_id> guess = std::exchange(slot.drafted, {});
        if (slot.held() < slot.tokens.size())
            return; // the prompt continues in a later step
        outcome.drafted += drafts;
        for (std::size_t i = 0; i <= drafts; ++i) {
            say(choice, row_of(logits, first + i));
            if (slot.ended || i == drafts || slot.tokens.back() != guess[i + 1])
                break;
            ++outcome.accepted;
        }
        if (slot.held() >= slot.tokens.size() && generated(slot) > 0)
            slot.sequence->truncate(slot.tokens.size() - 1);
    }

    /// Delivers the outcome of a request that has ended.
    void tell() {
        for (auto& slot : slots) {
            slot.splice.reset();
            if (slot.held() > slot.tokens.size())
                slot.sequence->truncate(slot.tokens.size()); // drafted tokens of a cancelled step
            const auto answer = std::span(std::as_const(slot.tokens)).subspan(request.prompt.size());
            outcome.answers.push_back({{answer.begin(), answer.end()}, *slot.ended, std::move(slot.sequence)});
        }
        if (request.on_finish)
            request.on_finish(std::move(outcome));
    }

    /// Forks the other answers from the first one, which has run the prompt, and draws their first token.
    void follow(const matrix& logits, std::size_t row) {
        for (std::size_t choice = 1; choice < slots.size(); ++choice)
            if (follows(choice) && !slots[choice].ended) {
                slots[choice].sequence = slots[0].sequence->fork(request.prompt.size());
                say(choice, row_of(logits, row));
            }
    }

private:
    void score(generated_token& token, std::span<const float> logits) const {
        const kvcache::log_probabilities scores(logits);
        token.log_probability = scores.of(token.token);
        token.top = scores.top(request.log_probabilities.value_or(0));
    }

    // Draws the next token of a slot and reports it to `on_token`.
    void say(std::size_t choice, std::span<const float> logits) {
        auto& slot = slots[choice];
        if (generated(slot) == most) {
            slot.ended = finish_reason::length;
            return;
        }
        if (auto finite = detail::check_finite(logits); !finite) {
            fail(finite.error());
            return;
        }
        generated_token token{.choice = choice, .index = generated(slot)};
        token.token = slot.sampling.draw(logits, token.index, slot.counts);
        if (slot.sampling.penalises())
            slot.counts.add(token.token);
        if (request.log_probabilities)
            score(token, logits);
        slot.tokens.push_back(token.token);
        if (due && !late)
            late = std::chrono::steady_clock::now() > *due;
        const token_action action = request.on_token ? request.on_token(token) : token_action::go_on;
        if (action == token_action::cancel)
            end(finish_reason::cancelled);
        else if (action == token_action::enough ||
                 ranges::find(request.stop.stop_tokens, token.token) != request.stop.stop_tokens.end())
            slot.ended = finish_reason::stopped;
        else if (generated(slot) == most)
            slot.ended = finish_reason::length;
    }
};

} // namespace detail

}} // namespace kvcache
