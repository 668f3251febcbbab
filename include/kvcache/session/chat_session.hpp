// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/session/chat_overflow.hpp>
#include <kvcache/session/chat_renderer.hpp>
#include <kvcache/session/chat_text.hpp>
#include <kvcache/session/chat_transcript.hpp>
#include <kvcache/session/chat_turn.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A conversation over a cache. It owns the sampled tokens of the conversation with their keys and values, so the
/// next turn computes only new tokens. Where a rendering differs (an edit, a template that rewrites earlier turns),
/// it continues from the last common token. Validity is decided by tokens alone; the logits are those of a fresh
/// prefill of the same prompt. A turn that fails, throws or is cancelled leaves the session unchanged. One thread at a
/// time. Requires: the cache outlives it.
template <class Cache, chat_overflow_policy Overflow = refuse_overflow>
class chat_session {
public:
    /// `context` is the maximum number of tokens of prompt and answer together, at most the positions of the model.
    chat_session(Cache& cache, chat_format with, std::size_t context, std::string system, Overflow overflow = {})
        : cache_(cache), with_(std::move(with)), context_(context), overflow_(std::move(overflow)) {
        if (!system.empty())
            messages_.push_back({.role = "system", .content = std::move(system)});
        system_ = messages_.size();
    }

    [[nodiscard]] std::span<const chat_message> messages() const noexcept { return messages_; }
    [[nodiscard]] std::span<const token_id> ids() const noexcept { return transcript_.ids(); }

    [[nodiscard]] chat_info info() const {
        const std::size_t cached = sequence_ ? sequence_->size() : 0;
        return {messages_.size(),
                transcript_.ids().size(),
                cached,
                transcript_.ids().size() - cached,
                context_,
                turns_,
                !sequence_ || sequence_->exact() == cached};
    }

    /// Enables warnings for a turn whose previous answer was cut off or that does not extend the conversation.
    /// Default: off.
    void set_strict(bool strict) noexcept { strict_ = strict; }
    /// Sets the tool definitions of the next turns (chat_options::tools).
    void set_tools(json tools) { with_.rendering.tools = std::move(tools); }

    /// Removes all messages but the system prompt, whose tokens stay cached. Errors: those of the template; the
    /// session is unchanged then.
    [[nodiscard]] result<void> clear() {
        const auto kept = system_tokens();
        if (!kept)
            return kept.error();
        const auto same = std::ranges::mismatch(*kept, transcript_.ids());
        keep(static_cast<std::size_t>(same.in1 - kept->begin()));
        messages_.resize(system_);
        complete_ = true;
        return {};
    }

    /// Releases all keys and values; the messages stay. The cache may still hold pages of them.
    void invalidate() noexcept { keep(0); }

    /// Computes the system prompt ahead of the first turn. Errors: those of the template and the pipeline.
    template <class Model>
    [[nodiscard]] result<void> warm_up(pipeline<Cache, Model>& pipeline) {
        const auto prefix = system_tokens();
        if (!prefix)
            return prefix.error();
        if (prefix->empty() || !transcript_.empty())
            return {};
        auto ran = pipeline.prefill(*prefix);
        if (!ran)
            return ran.error();
        sequence_ = std::move(ran->sequence);
        transcript_ = chat_transcript::of(with_.words, {}, *prefix, {});
        return {};
    }

    /// Begins a turn over these messages, which need not be the current ones. Errors: those of the template and the
    /// tokenizer; out_of_range if `room` more tokens do not fit and the overflow policy gives up.
    [[nodiscard]] result<chat_turn<Cache>> begin(std::vector<chat_message> messages, std::size_t room) {
        return begin(std::move(messages), room, with_.rendering);
    }
    /// Begins a turn that is rendered with options of its own, such as other tools.
    [[nodiscard]] result<chat_turn<Cache>> begin(std::vector<chat_message> messages, std::size_t room,
                                                 const chat_options& rendering) {
        const std::size_t given = messages.size();
        const chat_format form{with_.words, with_.form, rendering};
        const chat_renderer renderer(form, transcript_, overflow_, context_ - std::min(room, context_));
        auto made = renderer.fit(std::move(messages));
        if (!made)
            return made.error();
        dropped_tokens forgotten;
        if (!renderer.fits(*made)) {
            auto some = forget_some(made->tokens.ids, room);
            if (!some)
                return some.error();
            if (some->count == 0)
                return error{error_code::out_of_range, "context",
                             "the maximum context length is " + std::to_string(context_) +
                                 " tokens; the messages take " + std::to_string(made->tokens.ids.size()) +
                                 " and the answer may take " + std::to_string(room)};
            forgotten = std::move(*some);
        }
        auto known = forgotten.known ? std::move(*forgotten.known) : known_of(made->tokens.ids);
        const std::size_t dropped = given - made->messages.size();
        return chat_turn<Cache>{std::move(made->messages),
                                std::move(made->chat),
                                std::move(made->tokens.ids),
                                std::move(known),
                                made->tokens.extends,
                                dropped,
                                forgotten.count};
    }

    /// Completes a turn that was answered with `ids`. `sequence` holds the prompt and all of `ids` but the last.
    /// `text` becomes the last message.
    void finish(chat_turn<Cache> turn, typename Cache::sequence sequence, std::span<const token_id> ids,
                std::string text, bool complete) {
        expects(sequence.size() <= turn.prompt.size() + ids.size(), "a sequence holds tokens of prompt and answer");
        auto transcript = chat_transcript::of(with_.words, turn.rendered, turn.prompt, ids);
        turn.messages.push_back({.role = "assistant", .content = std::move(text)});
        sequence_.emplace(std::move(sequence)); // nothing below throws
        std::swap(transcript_, transcript);
        messages_.swap(turn.messages);
        complete_ = complete;
        ++turns_;
    }

    /// Says something as the user and hears the answer through `on_text(piece)`, which returns whether to go on.
    /// Errors: those of begin and generate, and cancelled if `on_text` said so; then nothing was said.
    template <class Model, class OnText>
    [[nodiscard]] result<chat_reply> say(pipeline<Cache, Model>& pipeline, std::string text, const sampler& draw,
                                         const stop_criteria& until, const std::vector<std::string>& stops,
                                         OnText on_text) {
        auto messages = messages_;
        messages.push_back({.role = "user", .content = std::move(text)});
        return reply(pipeline, std::move(messages), draw, until, stops, std::move(on_text));
    }

    /// Generates a new answer to the last user message. Requires: there is a user message.
    template <class Model, class OnText>
    [[nodiscard]] result<chat_reply> regenerate(pipeline<Cache, Model>& pipeline, const sampler& draw,
                                                const stop_criteria& until, const std::vector<std::string>& stops,
                                                OnText on_text) {
        auto messages = messages_;
        while (!messages.empty() && messages.back().role == "assistant")
            messages.pop_back();
        expects(!messages.empty() && messages.back().role == "user", "there is a user message to answer");
        return reply(pipeline, std::move(messages), draw, until, stops, std::move(on_text));
    }

    /// Answers a list of messages, such as a whole conversation from a client. Otherwise like say.
    template <class Model, class OnText>
    [[nodiscard]] result<chat_reply> reply(pipeline<Cache, Model>& pipeline, std::vector<chat_message> messages,
                                           const sampler& draw, const stop_criteria& until,
                                           const std::vector<std::string>& stops, OnText on_text) {
        auto turn = begin(std::move(messages), until.max_tokens);
        if (!turn)
            return turn.error();
        chat_reply made{.prompt = turn->prompt.size(),
                        .reused = turn->sequence.size(),
                        .prefilled = turn->prompt.size() - turn->sequence.size(),
                        .dropped = turn->dropped,
                        .dropped_tokens = turn->dropped_tokens,
                        .exact = turn->sequence.exact() == turn->sequence.size(),
                        .extends = turn->extends};
        if (strict_)
            made.notes = turn_warnings(*turn, info(), complete_);
        const std::span<const token_id> prompt = turn->prompt;
        auto logits = pipeline.extend(turn->sequence, prompt.subspan(made.reused));
        if (!logits)
            return logits.error();
        chat_text spoken(with_.words, prompt, stops);
        bool cancelled = false;
        prefill_result<Cache> begun{std::move(turn->sequence), std::move(*logits), made.reused, made.prefilled, {}};
        auto answered = generate(pipeline, std::move(begun), draw, until, [&](token_id token, std::span<const float>) {
            const std::string piece = spoken.push(token);
            cancelled = !on_text(piece);
            return !cancelled && !spoken.stopped();
        });
        if (!answered)
            return answered.error();
        if (cancelled || !on_text(spoken.flush()))
            return error{error_code::cancelled, "reply", "the caller cancelled the answer"};
        made.stopped = answered->stopped || spoken.stopped();
        made.text = spoken.text();
        made.ids = answered->ids;
        finish(std::move(*turn), std::move(answered->prompt.sequence), made.ids, made.text, made.stopped);
        return made;
    }

private:
    // Returns the longest cached prefix of a prompt, without its last token, which has to run. It comes from the
    // session's own sequence or from the cache.
    [[nodiscard]] typename Cache::sequence known_of(std::span<const token_id> prompt) {
        auto found = cache_.match(prompt);
        const compute_range plan = cache_.plan(found);
        if (sequence_) {
            const auto mine = sequence_->tokens();
            const auto same = static_cast<std::size_t>(std::ranges::mismatch(mine, prompt).in1 - mine.begin());
            auto own = sequence_->fork(std::min(same, prompt.size() - 1));
            if (own.size() > plan.first)
                return own;
        }
        return cache_.open(std::move(found), plan);
    }

    struct dropped_tokens {
        std::size_t count = 0;
        std::optional<typename Cache::sequence> known = {}; // the remaining rows, with their keys and values unchanged
    };

    // Removes tokens after the sink tokens of a prompt, if the overflow policy allows it, until `room` more fit.
    [[nodiscard]] result<dropped_tokens> forget_some(std::vector<token_id>& prompt, std::size_t room) {
        dropped_tokens made;
        if constexpr (drops_tokens<Overflow> && Cache::writes_rows) {
            const std::size_t first = overflow_.sinks().value_or(0);
            if (first == 0 || first >= context_ || room >= context_ - first)
                return made;
            const std::size_t count = prompt.size() - std::min(context_ - room, prompt.size());
            if (count == 0 || first + count >= prompt.size())
                return made;
            if (sequence_) {
                const auto mine = sequence_->tokens();
                const auto same = static_cast<std::size_t>(std::ranges::mismatch(mine, prompt).in1 - mine.begin());
                if (same > first + count) {
                    auto rest = sequence_->fork(std::min(same, prompt.size() - 1)).erase_range(first, count);
                    if (!rest)
                        return rest.error();
                    made.known.emplace(std::move(*rest));
                }
            }
            const auto at = prompt.begin() + static_cast<std::ptrdiff_t>(first);
            prompt.erase(at, at + static_cast<std::ptrdiff_t>(count));
            made.count = count;
        }
        return made;
    }

    // Returns the tokens common to all conversations with this system prompt: the common prefix of two renderings,
    // because some templates cannot render a system message alone.
    [[nodiscard]] result<std::vector<token_id>> system_tokens() const {
        std::vector<token_id> common;
        for (const char* word : {"a", "1"}) {
            std::vector<chat_message> some(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(system_));
            some.push_back({.role = "user", .content = word});
            const auto rendered = with_.form.render(some, with_.rendering);
            if (!rendered)
                return rendered.error();
            auto tokens = with_.words.encode(rendered->segments, false);
            if (!tokens)
                return tokens.error();
            if (common.empty())
                common = std::move(*tokens);
            else
                common.erase(std::ranges::mismatch(common, *tokens).in1, common.end());
        }
        return common;
    }

    // Keeps at most the first `tokens` tokens, all of which have keys and values.
    void keep(std::size_t tokens) noexcept {
        tokens = std::min(tokens, sequence_ ? sequence_->size() : 0);
        if (tokens == 0)
            sequence_.reset();
        else
            sequence_->truncate(tokens);
        transcript_.cut(sequence_ ? sequence_->size() : 0);
    }

    Cache& cache_;
    chat_format with_;
    std::size_t context_;
    Overflow overflow_;
    std::vector<chat_message> messages_;
    std::size_t system_ = 0; // messages that clear() keeps
    chat_transcript transcript_;
    std::optional<typename Cache::sequence> sequence_;
    std::size_t turns_ = 0;
    bool complete_ = true;
    bool strict_ = false;
};

}} // namespace kvcache
