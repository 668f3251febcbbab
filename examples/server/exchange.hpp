// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/session/chat_session.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../support/local_time.hpp"
#include "chat_fields.hpp"
#include "host.hpp"
#include "marked_parts.hpp"
#include "preparation.hpp"
#include "question.hpp"

namespace server {

/// A piece of an answer: the text that a token completed, which may be empty.
struct piece {
    std::size_t choice = 0;
    std::string text = {};
    kvcache::generated_token token = {};
    bool has_token = true; ///< False for text held back until the end.
};

/// A request shared by the computing thread and the client's thread. Created by ask; both own it.
template <class Layers>
class exchange : public ended_answer, public std::enable_shared_from_this<exchange<Layers>> {
public:
    /// Answers a chat, or a prompt of a completion. It reuses and stores pages of `tenant`.
    exchange(host<Layers>& at, std::shared_ptr<question> asked, std::size_t prompt, kvcache::tenant tenant)
        : at_(at), asked_(std::move(asked)), which_(prompt), tenant_(std::move(tenant)) {}

    /// Makes the question a turn of a conversation, once earlier turns are over. Errors: too many conversations;
    /// cancelled.
    [[nodiscard]] kvcache::result<void> join(const std::string& session_key, const request_watch& watch) {
        if (!asked_->chat || !at_.form || session_key.empty())
            return {};
        auto held = at_.sessions.acquire(digest_of(at_.cache.id(tenant_)), session_key, asked_->client,
                                         at_.make_conversation(tenant_), watch);
        if (!held)
            return held.error();
        held_.emplace(std::move(*held));
        held_->set_kept((*held_)->chat.info().turns > 0); // nothing is kept of a first turn that does not finish
        return {};
    }

    /// Makes the question a request to the engine. A request that joined no conversation reuses pages that are cached,
    /// and nothing else. Errors: an invalid question; cancelled, once `stop` is requested.
    [[nodiscard]] kvcache::result<void> prepare(const std::stop_token& stop) {
        if (mode() == kvcache::reuse_mode::chunks && !kvcache::knows_chunks<store<Layers>>)
            return kvcache::error{kvcache::error_code::unsupported, "cache",
                                  "cache: this server keeps the layers of its model by group, which reuses prefixes "
                                  "alone; --mode chunks starts one that reuses chunks"};
        if (auto begun = asked_->chat ? begin_chat(stop) : begin_completion(stop); !begun)
            return begun;
        if (stop.stop_requested())
            return kvcache::error{kvcache::error_code::cancelled, "request", "the request was cancelled"};
        kvcache::stop_criteria ends{.max_tokens = asked_->max_tokens.value_or(at_.context() - prompt_.size())};
        if (ends.max_tokens > at_.context() - prompt_.size() && asked_->max_tokens)
            return too_long();
        // One request leaves room for others.
        if (const std::size_t most =
                std::max(at_.with.max_sequences / 4, std::min<std::size_t>(at_.with.max_sequences, 8));
            asked_->choices > most)
            return kvcache::error{kvcache::error_code::out_of_range, "n",
                                  "n: at most " + std::to_string(most) + " answers can be had"};
        if (asked_->max_tokens && asked_->choices > 1 &&
            prompt_.size() + asked_->choices * (*asked_->max_tokens + at_.with.page) > at_.cache_tokens())
            return kvcache::error{kvcache::error_code::out_of_range, "n",
                                  "n: there is room for " + std::to_string(at_.cache_tokens()) +
                                      " tokens in all answers"};
        if (!asked_->ignore_eos)
            ends.stop_tokens = at_.model.config().eos;
        for (std::size_t i = 0; i < asked_->choices; ++i)
            texts_.emplace_back(at_.words, prompt_, asked_->stop);
        kvcache::engine_request<store<Layers>>& request = request_.emplace(
            kvcache::engine_request<store<Layers>>{.prompt = prompt_,
                                                   .tenant = tenant_,
                                                   .client = asked_->client,
                                                   .priority = asked_->priority,
                                                   .first_token_target = at_.first_token_target(),
                                                   .mode = mode(),
                                                   .recompute = asked_->recompute.value_or(at_.recompute),
                                                   .sampling = asked_->sampling,
                                                   .stop = std::move(ends),
                                                   .choices = asked_->choices,
                                                   .draft = at_.with.draft,
                                                   .drafter = at_.drafter,
                                                   .log_probabilities = asked_->log_probabilities,
                                                   .score_prompt = asked_->echo && asked_->log_probabilities,
                                                   .deadline = began_ + std::chrono::seconds(at_.with.timeout_s)});
        if (turn_ && turn_->sequence.size() > 0 && mode() != kvcache::reuse_mode::baseline)
            request.known = std::move(turn_->sequence);
        return {};
    }

    /// Submits the request, after the marked parts of its messages are chunks. Errors: a full queue; cancelled.
    /// Requires: it was prepared.
    [[nodiscard]] kvcache::result<void> start(const request_watch& watch) {
        if constexpr (kvcache::knows_chunks<store<Layers>>)
            if (!parts_.empty()) {
                request_->known.reset(); // its pages are for the parts; it finds them again
                if (auto warm = std::make_shared<part_warmer<Layers>>(at_, tenant_, asked_->client)
                                    ->run(std::exchange(parts_, {}), *request_->deadline, watch);
                    !warm)
                    return warm;
            }
        const auto self = this->shared_from_this(); // not before: a request that is never submitted would keep it
        request_->on_token = [self](const kvcache::generated_token& token) { return self->on_token(token); };
        request_->on_finish = [self](kvcache::engine_outcome<store<Layers>>&& end) { self->done(std::move(end)); };
        auto id = at_.engine().submit(std::move(*request_));
        request_.reset();
        if (!id)
            return id.error();
        id_ = *id;
        return {};
    }

    /// Returns the next piece; none after `patience`, or when the answer is complete (see over).
    [[nodiscard]] std::optional<piece> next(std::chrono::milliseconds patience) {
        std::unique_lock guard(lock_);
        changed_.wait_for(guard, patience, [&] { return !pieces_.empty() || outcome_; });
        if (pieces_.empty())
            return std::nullopt;
        piece first = std::move(pieces_.front());
        pieces_.pop_front();
        return first;
    }

    /// Returns whether the answer is complete and all pieces were taken.
    [[nodiscard]] bool over() const {
        const std::lock_guard guard(lock_);
        return outcome_ && pieces_.empty();
    }

    /// Waits at most `patience`. Returns: whether the answer is complete.
    [[nodiscard]] bool wait(std::chrono::milliseconds patience) {
        std::unique_lock guard(lock_);
        return changed_.wait_for(guard, patience, [&] { return outcome_.has_value(); });
    }

    /// Cancels the request, because the client has disconnected.
    void abandon() {
        const std::lock_guard guard(lock_);
        if (id_ && !outcome_ && !abandoned_)
            at_.engine().cancel(*id_);
        abandoned_ = true;
    }
    /// Cancels the request, and does not wait for its outcome. No effect if it has been finished.
    void leave() {
        abandon();
        const std::lock_guard guard(lock_);
        left_ = true;
        if (outcome_)
            record();
    }

    /// When complete: adds the turn to the conversation and releases it to the next request.
    void finish() {
        {
            const std::lock_guard guard(lock_);
            record();
        }
        keep();
        if (at_.with.debug)
            std::fprintf(stderr, "prefix_hit=%zu prefill=%zu generated=%zu cached=%zu\n", outcome_->reused,
                         outcome_->prefilled, generated(), cached_);
    }

    /// When complete: keeps the prompt of a warmed document as a chunk, or the turn of a conversation, and releases
    /// pages and conversation. No effect after the first call.
    void keep() override {
        const std::lock_guard guard(lock_);
        if (std::exchange(kept_, true))
            return;
        auto& first = outcome_->answers[0];
        if constexpr (kvcache::knows_chunks<store<Layers>>)
            if (asked_->bare && !failure() && first.sequence && first.sequence->exact() >= prompt_.size())
                chunk_ = kvcache::chunk_reuse<store<Layers>>(at_.cache).add(*first.sequence, 0, prompt_.size());
        // An approximate answer is no past of a later one.
        if (held_ && !failure() && first.sequence && outcome_->approximate == 0) {
            auto& chat = (*held_)->chat;
            chat.finish(std::move(*turn_), std::move(*first.sequence), first.ids, texts_[0].text(),
                        first.finish_reason == kvcache::finish_reason::stopped);
            cached_ = chat.info().cached;
            held_->set_kept(true);
            held_->set_bytes(at_.idle_bytes(cached_));
        }
        held_.reset();
        turn_.reset();
        for (auto& each : outcome_->answers)
            each.sequence.reset();
    }

    /// When complete: returns the error, if there is no answer.
    [[nodiscard]] std::optional<kvcache::error> failure() const {
        const auto& end = *outcome_;
        if (end.failure)
            return end.failure;
        for (const auto& each : end.answers) {
            if (each.finish_reason == kvcache::finish_reason::cancelled)
                return kvcache::error{kvcache::error_code::cancelled, "request", "the request was cancelled"};
            if (each.finish_reason == kvcache::finish_reason::expired)
                return kvcache::error{kvcache::error_code::cancelled, "timeout", "timeout: the request took too long"};
        }
        return std::nullopt;
    }

    /// The tokens of a warmed document that other prompts find as a chunk: 0 if they are too few, or not exact.
    /// Requires: the answer was kept.
    [[nodiscard]] std::size_t chunk_tokens() const noexcept { return chunk_; }

    /// What the request reuses.
    [[nodiscard]] kvcache::reuse_mode mode() const noexcept { return asked_->mode.value_or(at_.mode); }
    [[nodiscard]] const question& asked() const noexcept { return *asked_; }
    [[nodiscard]] host<Layers>& at() const noexcept { return at_; }
    [[nodiscard]] const std::vector<kvcache::token_id>& prompt() const noexcept { return prompt_; }
    /// The text of the prompt of a completion.
    [[nodiscard]] std::string prompt_text() const {
        const text_or_ids& given = asked_->prompts[which_];
        return given.ids.empty() ? given.text : at_.words.decode(prompt_, {});
    }
    [[nodiscard]] std::size_t known_before() const noexcept { return known_before_; }
    [[nodiscard]] const std::string& text(std::size_t choice) const { return texts_[choice].text(); }
    [[nodiscard]] const kvcache::engine_outcome<store<Layers>>& outcome() const { return *outcome_; }
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    }
    [[nodiscard]] double first_token() const noexcept { return first_.value_or(0.0); }

private:
    using table = kvcache::session_table<conversation<Layers>>;

    // Cuts the messages at their marked parts, and encodes these.
    [[nodiscard]] kvcache::result<void> cut([[maybe_unused]] kvcache::chat_options& how) {
        if (asked_->marked.empty() || mode() != kvcache::reuse_mode::chunks)
            return {};
        if constexpr (kvcache::knows_chunks<store<Layers>>) {
            for (const support::marked_part& part : asked_->marked) {
                auto ids = at_.words.encode(
                    std::string_view(asked_->messages[part.message].content).substr(part.first, part.bytes),
                    {.add_special_tokens = false, .parse_special = false, .stop = how.stop});
                if (!ids)
                    return ids.error();
                const std::size_t whole = kvcache::chunk_reuse<store<Layers>>(at_.cache).splice_position(ids->size());
                if (whole >= kvcache::index::chunk{}.least && ids->size() <= at_.context())
                    parts_.push_back(std::move(*ids));
            }
            how.cut = support::cut_at_marks(asked_->messages, asked_->marked);
        }
        return {};
    }

    [[nodiscard]] kvcache::result<void> begin_chat(const std::stop_token& stop) {
        if (!at_.form)
            return kvcache::error{kvcache::error_code::malformed, "messages",
                                  "messages cannot be written for this model: " + at_.no_form};
        conversation<Layers> alone(at_.cache, tenant_, *at_.form, at_.context(), at_.with);
        auto& with = (held_ ? **held_ : alone).chat;
        known_before_ = with.ids().size();
        kvcache::chat_options how = at_.form->rendering;
        how.stop = stop;
        how.now = how.now ? std::optional(support::local_time()) : std::nullopt;
        how.tools = std::exchange(asked_->tools, nullptr);
        for (auto& [name, value] : asked_->variables.items())
            how.variables[name] = std::move(value);
        detail::convert_arguments(asked_->messages, at_.parsed_arguments);
        if (auto encoded = cut(how); !encoded)
            return encoded;
        auto begun = with.begin(std::exchange(asked_->messages, {}), asked_->max_tokens.value_or(1), how);
        if (!begun)
            return begun.error();
        prompt_ = begun->prompt;
        turn_.emplace(std::move(*begun));
        return {};
    }

    [[nodiscard]] kvcache::result<void> begin_completion(const std::stop_token& stop) {
        const text_or_ids& given = asked_->prompts[which_];
        if (!given.ids.empty())
            prompt_ = given.ids;
        else if (auto encoded = at_.words.encode(given.text, {.add_special_tokens = !asked_->bare, .stop = stop}))
            prompt_ = std::move(*encoded);
        else
            return encoded.error();
        if (prompt_.empty())
            return kvcache::error{kvcache::error_code::malformed, "prompt", "prompt must hold at least one token"};
        return prompt_.size() > at_.context() ? too_long() : kvcache::result<void>();
    }

    [[nodiscard]] kvcache::error too_long() const {
        return {kvcache::error_code::out_of_range, "context",
                "the maximum context length is " + std::to_string(at_.context()) + " tokens; the prompt takes " +
                    std::to_string(prompt_.size()) + " and the answer may take " +
                    std::to_string(asked_->max_tokens.value_or(1))};
    }

    // Tokens of all answers. Requires: the request is complete.
    [[nodiscard]] std::size_t generated() const {
        std::size_t made = 0;
        for (const auto& each : outcome_->answers)
            made += each.ids.size();
        return made;
    }

    // Counts the request once. Requires: it is complete.
    void record() {
        if (std::exchange(recorded_, true))
            return;
        const auto& end = *outcome_;
        at_.times.add({.first_token = first_.value_or(0.0),
                       .whole = seconds(),
                       .prompt = prompt_.size(),
                       .reused = end.reused,
                       .approximate = end.approximate,
                       .recomputed = end.recomputed,
                       .prefilled = end.prefilled,
                       .generated = generated(),
                       .succeeded = !failure(),
                       .cancelled = std::ranges::any_of(end.answers, [](const auto& each) {
                           return each.finish_reason == kvcache::finish_reason::cancelled;
                       })});
    }

    // Called by the computing thread.
    [[nodiscard]] kvcache::token_action on_token(const kvcache::generated_token& token) {
        auto& text = texts_[token.choice];
        const std::lock_guard guard(lock_);
        if (!first_)
            first_ = seconds();
        pieces_.push_back({token.choice, text.push(token.token), token});
        changed_.notify_one();
        return abandoned_       ? kvcache::token_action::cancel
               : text.stopped() ? kvcache::token_action::enough
                                : kvcache::token_action::go_on;
    }

    void done(kvcache::engine_outcome<store<Layers>>&& end) {
        const std::lock_guard guard(lock_);
        for (std::size_t i = 0; i < texts_.size(); ++i)
            if (std::string rest = texts_[i].flush(); !rest.empty())
                pieces_.push_back({i, std::move(rest), {}, false});
        outcome_.emplace(std::move(end));
        if (held_ || asked_->bare)
            at_.ended.add(this->weak_from_this());
        else // nothing is kept
            for (auto& each : outcome_->answers)
                each.sequence.reset();
        if (left_)
            record();
        changed_.notify_one();
    }

    host<Layers>& at_;
    std::shared_ptr<question> asked_;
    std::size_t which_;      // of the prompts
    kvcache::tenant tenant_; // outlives what belongs to it
    std::vector<kvcache::token_id> prompt_;
    std::vector<std::vector<kvcache::token_id>> parts_; // marked
    std::optional<kvcache::engine_request<store<Layers>>> request_;
    std::size_t known_before_ = 0;
    std::optional<typename table::hold> held_;
    std::optional<kvcache::chat_turn<store<Layers>>> turn_;
    std::vector<kvcache::chat_text> texts_;
    std::optional<kvcache::request_id> id_;
    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();

    mutable std::mutex lock_;
    std::condition_variable changed_;
    std::deque<piece> pieces_;
    std::optional<kvcache::engine_outcome<store<Layers>>> outcome_;
    std::optional<double> first_;
    bool abandoned_ = false;
    bool left_ = false;      // the client's thread does not finish it
    bool recorded_ = false;  // see record
    bool kept_ = false;      // see keep
    std::size_t chunk_ = 0;  // tokens of the prompt that are a chunk
    std::size_t cached_ = 0; // tokens of the conversation
};

} // namespace server
