// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/tensor.hpp>
#include <kvcache/session/engine_request.hpp>
#include <kvcache/session/finite_logits.hpp>
#include <kvcache/session/prompt_lookup.hpp>
#include <kvcache/session/tier_prefetch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// An answer being generated: its tokens, and the sequence that holds the first of them.
template <class Cache>
struct engine_slot {
    std::vector<token_id> tokens = {}; // prompt, then the answer so far
    std::optional<typename Cache::sequence> sequence = {};
    sampler draw = {};
    token_counts counts = {};
    std::optional<finish_reason> ended = {};

    // Rows of the current step.
    std::size_t rows = 0;               // number of tokens
    std::vector<token_id> drafted = {}; // the last token and the drafted tokens after it; empty without a draft

    [[nodiscard]] std::size_t held() const { return sequence ? sequence->size() : 0; }
    [[nodiscard]] std::size_t pending() const { return tokens.size() - held(); }
    [[nodiscard]] bool active() const { return !ended && sequence.has_value(); }

    /// Rows of the step that has just run.
    std::size_t run_rows = 0;

    /// Returns the tokens that run in this step.
    [[nodiscard]] std::span<const token_id> run() const {
        return drafted.empty() ? std::span(tokens).subspan(held(), rows) : std::span<const token_id>(drafted);
    }
};

/// A running request.
template <class Cache>
struct engine_job {
    request_id id = {};
    engine_request<Cache> request = {};
    std::size_t most = 0; // maximum tokens of an answer
    std::vector<engine_slot<Cache>> lanes = {};
    engine_outcome<Cache> outcome = {};
    bool counted = false;                             // `reused` is recorded
    typename tier_prefetch<Cache>::ticket ahead = {}; // the prefetch it waits for

    engine_job(request_id name, engine_request<Cache> asked, std::size_t max_positions)
        : id(name), request(std::move(asked)) {
        most = std::min(request.until.max_tokens, max_positions - request.prompt.size() + 1);
        lanes.resize(request.choices);
        if (request.score_prompt && !request.prompt.empty())
            outcome.prompt.push_back({.token = request.prompt.front()});
        for (auto& lane : lanes) {
            lane.tokens = request.prompt;
            lane.draw = request.draw;
            lane.draw.choice += static_cast<std::uint64_t>(&lane - lanes.data());
            if (request.draw.penalises())
                lane.counts = token_counts(request.prompt);
        }
    }

    [[nodiscard]] std::size_t generated(const engine_slot<Cache>& lane) const {
        return lane.tokens.size() - request.prompt.size();
    }
    [[nodiscard]] bool over() const {
        return std::ranges::all_of(lanes, [](const auto& lane) { return lane.ended.has_value(); });
    }
    /// Returns whether an answer takes its prompt from the first answer, once that has run it.
    [[nodiscard]] bool follows(std::size_t choice) const { return choice > 0 && generated(lanes[choice]) == 0; }

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
        for (auto& lane : lanes)
            if (!lane.ended)
                lane.ended = why;
    }
    void fail(error reason) {
        end(finish_reason::failed);
        if (!outcome.failure)
            outcome.failure = std::move(reason);
    }

    /// Drafts the next tokens of a slot, at most `room`.
    void draft(engine_slot<Cache>& lane, std::size_t room) const {
        lane.drafted.clear();
        const std::size_t left = most - generated(lane); // the last of them is never run
        if (request.draft == 0 || left < 2)
            return;
        const auto guess = prompt_lookup(lane.tokens, std::min({request.draft, room, left - 1}));
        if (guess.empty())
            return;
        lane.drafted.push_back(lane.tokens.back());
        lane.drafted.insert(lane.drafted.end(), guess.begin(), guess.end());
    }

    /// Handles the logits of a slot after its rows have run. Row `first` of `logits` is the first one requested for
    /// the slot.
    void sample(std::size_t choice, const matrix& logits, std::size_t first) {
        auto& lane = lanes[choice];
        const std::size_t drafts = lane.drafted.empty() ? 0 : lane.drafted.size() - 1;
        const std::vector<token_id> guess = std::exchange(lane.drafted, {});
        if (lane.held() < lane.tokens.size())
            return; // the prompt continues in a later step
        outcome.drafted += drafts;
        for (std::size_t i = 0; i <= drafts; ++i) {
            say(choice, row_of(logits, first + i));
            if (lane.ended || i == drafts || lane.tokens.back() != guess[i + 1])
                break;
            ++outcome.accepted;
        }
        if (lane.held() >= lane.tokens.size() && generated(lane) > 0)
            lane.sequence->truncate(lane.tokens.size() - 1);
    }

    /// Delivers the outcome of a request that has ended.
    void tell() {
        for (auto& lane : lanes) {
            if (lane.held() > lane.tokens.size())
                lane.sequence->truncate(lane.tokens.size()); // drafted tokens of a cancelled step
            const auto answer = std::span(std::as_const(lane.tokens)).subspan(request.prompt.size());
            outcome.answers.push_back({{answer.begin(), answer.end()}, *lane.ended, std::move(lane.sequence)});
        }
        if (request.done)
            request.done(std::move(outcome));
    }

    /// Forks the other answers from the first one, which has run the prompt, and draws their first token.
    void follow(const matrix& logits, std::size_t row) {
        for (std::size_t choice = 1; choice < lanes.size(); ++choice)
            if (follows(choice) && !lanes[choice].ended) {
                lanes[choice].sequence = lanes[0].sequence->fork(request.prompt.size());
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
        auto& lane = lanes[choice];
        if (generated(lane) == most) {
            lane.ended = finish_reason::length;
            return;
        }
        if (auto finite = detail::check_finite(logits); !finite) {
            fail(finite.error());
            return;
        }
        generated_token token{.choice = choice, .index = generated(lane)};
        token.token = lane.draw.draw(logits, token.index, lane.counts);
        if (lane.draw.penalises())
            lane.counts.add(token.token);
        if (request.log_probabilities)
            score(token, logits);
        lane.tokens.push_back(token.token);
        const token_action action = request.on_token ? request.on_token(token) : token_action::go_on;
        if (action == token_action::cancel)
            end(finish_reason::cancelled);
        else if (action == token_action::enough ||
                 std::ranges::find(request.until.stop, token.token) != request.until.stop.end())
            lane.ended = finish_reason::stopped;
        else if (generated(lane) == most)
            lane.ended = finish_reason::length;
    }
};

}}} // namespace kvcache::detail
