// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/stop_token.hpp>
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

/// Tokenizer and template of a conversation. Cheap to copy.
struct chat_format {
    tokenizer words;
    chat_template form;
    chat_options rendering = {};
};

/// Counts of a conversation. ids = cached + pending, always.
struct chat_info {
    std::size_t messages = 0;
    std::size_t ids = 0;     ///< Tokens of the conversation.
    std::size_t cached = 0;  ///< Tokens with keys and values.
    std::size_t pending = 0; ///< Tokens without: 0 or 1, the last sampled token. More after drafts if the codec
                             ///< encodes whole pages.
    std::size_t context = 0; ///< Maximum tokens of the conversation.
    std::size_t turns = 0;   ///< Turns finished since the conversation began.
    bool exact = true;       ///< False after tokens were dropped from the middle.
};

/// A turn that has begun: its prompt and the cached prefix. The session does not change until the turn is finished.
template <class Cache>
struct chat_turn {
    std::vector<chat_message> messages; ///< Messages after the overflow policy.
    rendered_chat rendered;
    std::vector<token_id> prompt;
    typename Cache::sequence sequence; ///< Holds the first tokens of the prompt, at least one fewer than all.
    bool extends = false;              ///< Only what is new was encoded.
    std::size_t dropped = 0;           ///< Messages that the overflow policy took away.
    std::size_t dropped_tokens = 0;    ///< Tokens that it took out of the prompt.
    std::size_t same = 0; ///< Tokens of the conversation so far with which the prompt begins, before any was taken out.
};

/// The result of a turn.
struct chat_reply {
    std::string text = {};
    std::vector<token_id> ids = {}; ///< The sampled tokens.
    std::size_t prompt = 0;         ///< Tokens of the prompt.
    std::size_t reused = 0;
    std::size_t prefilled = 0;
    /// Tokens of the conversation so far that the prompt no longer has at their positions: the reasoning that a
    /// template leaves out of earlier turns, an edit, and all that followed. Those that it has elsewhere run again.
    std::size_t changed = 0;
    /// Of the tokens that the prompt has at their positions, those that run again: the last one of a prompt, and those
    /// before which no state, window or exact row is kept.
    std::size_t rerun = 0;
    std::size_t dropped = 0;        ///< Messages that did not fit.
    std::size_t dropped_tokens = 0; ///< Tokens that did not.
    bool exact = true;              ///< Whether the logits are those of a fresh prefill of the prompt.
    bool extends = false;
    bool stopped = false;                ///< Ended by a stop token or stop string, not by the length limit.
    std::vector<std::string> notes = {}; ///< Warnings of strict mode; they affect nothing else.
};

/// Returns the warnings for a turn. `complete` tells whether the model ended the previous answer.
template <class Cache>
[[nodiscard]] std::vector<std::string> turn_warnings(const chat_turn<Cache>& turn, const chat_info& before,
                                                     bool complete) {
    std::vector<std::string> notes;
    if (!complete)
        notes.push_back("the answer before was cut by its length, not ended by the model");
    if (!turn.extends && before.turns > 0)
        notes.push_back("the messages do not extend the conversation: token " + std::to_string(turn.sequence.size()) +
                        " of " + std::to_string(before.ids) + " is the first that runs again");
    return notes;
}

/// The tokens of a conversation, sampled ones included, and the text they stand for. Each byte of the text is marked
/// as control text or plain text. If the next rendering begins with that text, its tokens are kept and only the rest
/// is encoded.
class chat_transcript {
public:
    /// The tokens of a rendered chat.
    struct prompt {
        std::vector<token_id> ids = {};
        bool extends = false; ///< The transcript is a prefix of the rendering, and its tokens were kept.
    };

    [[nodiscard]] std::span<const token_id> ids() const noexcept { return ids_; }
    [[nodiscard]] bool empty() const noexcept { return ids_.empty(); }

    /// Returns the tokens of `chat`. The tokens of the transcript are kept if its text is a prefix of the rendering,
    /// with the same bytes and marks, and a control token stands at the boundary, so that no token could span it.
    /// Errors: those of tokenizer::encode. Cost: O(bytes); the known bytes are only compared.
    KVCACHE_LAZY [[nodiscard]] result<prompt> tokens_of(const tokenizer& words, const rendered_chat& chat,
                                                        const stop_token& stop = {}) const {
        if (const auto rest = behind(chat.segments)) {
            auto more = suffix(words, *rest, stop);
            if (!more)
                return more.error();
            if (more->extends) {
                more->ids.insert(more->ids.begin(), ids_.begin(), ids_.end());
                return more;
            }
        }
        auto all = words.encode(chat.segments, false, stop);
        if (!all)
            return all.error();
        return prompt{std::move(*all), false};
    }

    /// Returns the transcript of `chat`, which ran as `ids`, followed by the sampled tokens `answer`.
    KVCACHE_LAZY [[nodiscard]] static chat_transcript of(const tokenizer& words, const rendered_chat& chat,
                                                         std::span<const token_id> ids,
                                                         std::span<const token_id> answer) {
        chat_transcript made;
        for (const text_segment& each : chat.segments)
            made.append(each.text, each.is_control);
        stream_decoder text(words, {});
        if (!ids.empty())
            (void)text.push(ids.back()); // the answer does not begin a text
        for (const token_id token : answer) {
            const bool control = words.is_control(token);
            if (control) // the bytes held back belong to the tokens before
                made.append(text.flush(), false);
            made.append(control ? *words.try_piece(token) : text.push(token), control);
        }
        made.append(text.flush(), false);
        made.ids_.assign(ids.begin(), ids.end());
        made.ids_.insert(made.ids_.end(), answer.begin(), answer.end());
        return made;
    }

    /// Keeps the first `tokens` tokens. Their text is no longer known, so the next rendering is encoded as a whole.
    KVCACHE_LAZY void cut(std::size_t tokens) {
        ids_.resize(std::min(tokens, ids_.size()));
        text_.clear();
        control_.clear();
    }

private:
    // Returns the segments after the transcript, if its text is a prefix of `segments`.
    KVCACHE_LAZY [[nodiscard]] std::optional<std::vector<text_segment>>
    behind(std::span<const text_segment> segments) const {
        if (ids_.empty() || text_.empty())
            return std::nullopt;
        std::size_t at = 0;
        std::vector<text_segment> rest;
        for (const text_segment& each : segments) {
            const std::size_t n = std::min(each.text.size(), text_.size() - at);
            if (text_.compare(at, n, each.text, 0, n) != 0)
                return std::nullopt;
            for (std::size_t i = at; i < at + n; ++i)
                if (control_[i] != each.is_control)
                    return std::nullopt;
            at += n;
            if (n < each.text.size())
                rest.push_back({each.text.substr(n), each.is_control, n == 0 && each.after_cut});
        }
        return at == text_.size() ? std::optional(std::move(rest)) : std::nullopt;
    }

    // Returns the tokens of the remaining segments, if a control token stands at the boundary.
    KVCACHE_LAZY [[nodiscard]] result<prompt> suffix(const tokenizer& words, std::vector<text_segment> rest,
                                                     const stop_token& stop) const {
        if (rest.empty())
            return prompt{{}, true};
        const bool behind_control = words.is_control(ids_.back());
        if (behind_control)
            rest.insert(rest.begin(), {*words.try_piece(ids_.back()), true});
        auto more = words.encode(rest, false, stop);
        if (!more)
            return more.error();
        if (more->empty() || (behind_control ? more->front() != ids_.back() : !words.is_control(more->front())))
            return prompt{};
        if (behind_control)
            more->erase(more->begin());
        return prompt{std::move(*more), true};
    }

    KVCACHE_LAZY void append(const std::string& text, bool control) {
        text_ += text;
        control_.resize(text_.size(), control);
    }

    std::vector<token_id> ids_;
    std::string text_;
    std::vector<bool> control_; // one mark per byte of text_
};

}} // namespace kvcache
