// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/session/chat_overflow.hpp>
#include <kvcache/session/chat_transcript.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/stop_strings.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/stream_decoder.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Messages as the tokens of a prompt.
struct chat_prompt {
    std::vector<chat_message> messages;
    rendered_chat chat;
    chat_transcript::prompt tokens;
};

/// Renders and encodes conversations so that they take at most `most` tokens. Requires: format, transcript and overflow
/// policy outlive it.
template <chat_overflow_policy Overflow>
class chat_renderer {
public:
    chat_renderer(const chat_format& with, const chat_transcript& known, const Overflow& overflow, std::size_t most)
        : with_(with), known_(known), overflow_(overflow), most_(most) {}

    [[nodiscard]] bool fits(const chat_prompt& prompt) const noexcept { return prompt.tokens.ids.size() <= most_; }

    /// Returns the messages as a prompt. If that is too long, drops the fewest oldest turns with which it fits, or, if
    /// it never fits, all that the policy allows. Errors: those of the template and the tokenizer; malformed if there
    /// is no token. Cost: beyond one rendering of all messages, O(log turns) renderings of about `most` tokens.
    [[nodiscard]] result<chat_prompt> fit(std::vector<chat_message> messages) const {
        auto whole = render(std::move(messages));
        if (!whole || fits(*whole))
            return whole;
        std::size_t enough = overflow_.droppable_turns(whole->messages);
        if (enough == 0)
            return whole;
        auto best = without(*whole, enough);
        std::size_t step = 1; // the shortest prompts are tried first
        for (std::size_t too_few = 0; best && fits(*best) && enough - too_few > 1; step *= 2) {
            const std::size_t turns = enough - std::min(step, (enough - too_few) / 2);
            auto longer = without(*whole, turns);
            if (!longer)
                return longer;
            if (fits(*longer)) {
                best = std::move(longer);
                enough = turns;
            } else
                too_few = turns;
        }
        return best;
    }

private:
    [[nodiscard]] result<chat_prompt> render(std::vector<chat_message> messages) const {
        auto chat = with_.form.render(messages, with_.rendering);
        if (!chat)
            return chat.error();
        auto tokens = known_.tokens_of(with_.words, *chat, with_.rendering.stop);
        if (!tokens)
            return tokens.error();
        if (tokens->ids.empty())
            return error{error_code::malformed, "messages", "the messages render to no token"};
        return chat_prompt{std::move(messages), std::move(*chat), std::move(*tokens)};
    }

    [[nodiscard]] result<chat_prompt> without(const chat_prompt& whole, std::size_t turns) const {
        return render(overflow_.without_turns(whole.messages, turns));
    }

    const chat_format& with_;
    const chat_transcript& known_;
    const Overflow& overflow_;
    std::size_t most_;
};

/// Decodes the tokens of an answer into text. Special tokens are left out, code points are whole, and the text ends
/// at the first stop string. Only bytes that may still become a stop string are held back.
class chat_text {
public:
    /// The text follows `prompt`: its last token, if any, is the left context of the first decoded token.
    KVCACHE_LAZY chat_text(const tokenizer& words, std::span<const token_id> prompt,
                           const std::vector<std::string>& stop_strings)
        : decoder_(words, {.skip_special = true}), stops_(stop_strings) {
        if (!prompt.empty())
            (void)decoder_.push(prompt.back());
    }

    /// Returns: the text that can no longer be part of a stop string, often empty.
    KVCACHE_LAZY [[nodiscard]] std::string push(token_id token) { return keep(stops_.push(decoder_.push(token))); }

    /// Ends the answer. Returns: the text held back.
    KVCACHE_LAZY [[nodiscard]] std::string flush() {
        std::string rest = stops_.push(decoder_.flush());
        return keep(rest + stops_.flush());
    }

    /// Returns whether a stop string ended the text.
    [[nodiscard]] bool stopped() const noexcept { return stops_.stopped(); }
    /// Returns the text so far, without the bytes held back.
    [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
    [[nodiscard]] std::string keep(std::string piece) {
        text_ += piece;
        return piece;
    }

    stream_decoder decoder_;
    stop_strings stops_;
    std::string text_;
};

/// A conversation over a cache. It owns the sampled tokens of the conversation with their keys and values, so the
/// next turn computes only new tokens. Where a rendering differs (an edit, a template that rewrites earlier turns),
/// it continues from the last common token. Validity is decided by tokens alone; the logits are those of a fresh
/// prefill of the same prompt. A turn that fails, throws or is cancelled leaves the session unchanged. One thread at a
/// time. Requires: the cache outlives it.
template <class Cache, chat_overflow_policy Overflow = refuse_overflow>
class chat_session {
public:
    /// `context` is the maximum number of tokens of prompt and answer together, at most the positions of the model.
    /// `of` is whose conversation it is, in a cache with tenants.
    chat_session(Cache& cache, chat_format with, std::size_t context, std::string system, Overflow overflow = {},
                 tenant of = {})
        : cache_(cache),
          with_(std::move(with)),
          context_(context),
          overflow_(std::move(overflow)),
          tenant_(std::move(of)) {
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
        const auto same = ranges::mismatch(*kept, transcript_.ids());
        keep(static_cast<std::size_t>(same.in1 - kept->begin()));
        messages_.resize(system_);
        complete_ = true;
        return {};
    }

    /// Releases all keys and values; the messages stay. The cache may still hold pages of them.
    void invalidate() noexcept { keep(0); }

    /// Computes the system prompt ahead of the first turn, which then computes the user's tokens only. Sessions of one
    /// tenant over one cache share it: a second one with the same system prompt computes nothing. Does nothing once
    /// there are tokens. Returns the number of tokens computed. Errors: those of the template and the pipeline; the
    /// session is unchanged then.
    template <class Model>
    [[nodiscard]] result<std::size_t> warm_up(pipeline<Cache, Model>& pipeline) {
        auto prefix = system_tokens();
        if (!prefix)
            return prefix.error();
        if (prefix->empty() || !transcript_.empty())
            return 0;
        const std::size_t size = prefix->size();
        prefix->push_back(prefix->back()); // the cache leaves out the last token, which is none of the prompt
        auto known = cache_.open(*prefix, tenant_);
        known.truncate(std::min(known.size(), size));
        prefix->pop_back();
        const std::size_t computed = size - known.size();
        if (computed > 0)
            if (auto ran = pipeline.extend(known, std::span(*prefix).last(computed), logits_mode::none); !ran)
                return ran.error();
        auto transcript = chat_transcript::of(with_.words, {}, *prefix, {});
        sequence_.emplace(std::move(known)); // nothing below throws
        std::swap(transcript_, transcript);
        return computed;
    }

    /// Begins a turn over these messages, which need not be the current ones. Errors: those of the template and the
    /// tokenizer; out_of_range if `answer_tokens` more tokens do not fit and the overflow policy gives up.
    [[nodiscard]] result<chat_turn<Cache>> begin(std::vector<chat_message> messages, std::size_t answer_tokens) {
        return begin(std::move(messages), answer_tokens, with_.rendering);
    }
    /// Begins a turn that is rendered with options of its own, such as other tools.
    [[nodiscard]] result<chat_turn<Cache>> begin(std::vector<chat_message> messages, std::size_t answer_tokens,
                                                 const chat_options& rendering) {
        const std::size_t given = messages.size();
        const chat_format form{with_.words, with_.form, rendering};
        const chat_renderer renderer(form, transcript_, overflow_, context_ - std::min(answer_tokens, context_));
        auto made = renderer.fit(std::move(messages));
        if (!made)
            return made.error();
        const std::span<const token_id> before = ids(), now = made->tokens.ids;
        const auto same = static_cast<std::size_t>(ranges::mismatch(before, now).in1 - before.begin());
        dropped_tokens forgotten;
        if (!renderer.fits(*made)) {
            auto some = forget_some(made->tokens.ids, answer_tokens);
            if (!some)
                return some.error();
            if (some->count == 0)
                return error{error_code::out_of_range, "context",
                             "the maximum context length is " + std::to_string(context_) +
                                 " tokens; the messages take " + std::to_string(made->tokens.ids.size()) +
                                 " and the answer may take " + std::to_string(answer_tokens)};
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
                                forgotten.count,
                                same};
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
    [[nodiscard]] result<chat_reply> say(pipeline<Cache, Model>& pipeline, std::string text, const sampler& sampling,
                                         const stop_criteria& stop, const std::vector<std::string>& stop_strings,
                                         OnText on_text) {
        auto messages = messages_;
        messages.push_back({.role = "user", .content = std::move(text)});
        return reply(pipeline, std::move(messages), sampling, stop, stop_strings, std::move(on_text));
    }

    /// Generates a new answer to the last user message. Requires: there is a user message.
    template <class Model, class OnText>
    [[nodiscard]] result<chat_reply> regenerate(pipeline<Cache, Model>& pipeline, const sampler& sampling,
                                                const stop_criteria& stop, const std::vector<std::string>& stop_strings,
                                                OnText on_text) {
        auto messages = messages_;
        while (!messages.empty() && messages.back().role == "assistant")
            messages.pop_back();
        expects(!messages.empty() && messages.back().role == "user", "there is a user message to answer");
        return reply(pipeline, std::move(messages), sampling, stop, stop_strings, std::move(on_text));
    }

    /// Answers a list of messages, such as a whole conversation from a client. Otherwise like say.
    template <class Model, class OnText>
    [[nodiscard]] result<chat_reply> reply(pipeline<Cache, Model>& pipeline, std::vector<chat_message> messages,
                                           const sampler& sampling, const stop_criteria& stop,
                                           const std::vector<std::string>& stop_strings, OnText on_text) {
        auto turn = begin(std::move(messages), stop.max_tokens);
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
        made.changed = ids().size() - turn->same;
        const std::size_t had = std::min(turn->same, info().cached); // the last token of an answer has not run yet
        made.rerun = had - std::min(had, made.reused + made.dropped_tokens);
        auto logits = pipeline.extend(turn->sequence, prompt.subspan(made.reused));
        if (!logits)
            return logits.error();
        chat_text spoken(with_.words, prompt, stop_strings);
        bool cancelled = false;
        prefill_result<Cache> begun{std::move(turn->sequence), std::move(*logits), made.reused, made.prefilled, {}};
        auto answered =
            generate(pipeline, std::move(begun), sampling, stop, [&](token_id token, std::span<const float>) {
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
        auto cached = cache_.open(prompt, tenant_);
        if (sequence_) {
            const auto mine = sequence_->tokens();
            const auto same = static_cast<std::size_t>(ranges::mismatch(mine, prompt).in1 - mine.begin());
            auto own = sequence_->fork(std::min(same, prompt.size() - 1));
            if (own.size() > cached.size())
                return own;
        }
        return cached;
    }

    struct dropped_tokens {
        std::size_t count = 0;
        std::optional<typename Cache::sequence> known = {}; // the remaining rows, with their keys and values unchanged
    };

    // Removes tokens after the sink tokens of a prompt, if the overflow policy allows it, until `answer_tokens` more
    // fit.
    [[nodiscard]] result<dropped_tokens> forget_some(std::vector<token_id>& prompt, std::size_t answer_tokens) {
        dropped_tokens made;
        if constexpr (drops_tokens<Overflow> && Cache::writes_rows) {
            const std::size_t first = overflow_.sinks().value_or(0);
            if (first == 0 || first >= context_ || answer_tokens >= context_ - first)
                return made;
            const std::size_t count = prompt.size() - std::min(context_ - answer_tokens, prompt.size());
            if (count == 0 || first + count >= prompt.size())
                return made;
            if (sequence_) {
                const auto mine = sequence_->tokens();
                const auto same = static_cast<std::size_t>(ranges::mismatch(mine, prompt).in1 - mine.begin());
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
                common.erase(ranges::mismatch(common, *tokens).in1, common.end());
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
    tenant tenant_;
    std::vector<chat_message> messages_;
    std::size_t system_ = 0; // messages that clear() keeps
    chat_transcript transcript_;
    std::optional<typename Cache::sequence> sequence_;
    std::size_t turns_ = 0;
    bool complete_ = true;
    bool strict_ = false;
};

}} // namespace kvcache
