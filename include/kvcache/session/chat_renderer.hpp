// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/session/chat_overflow.hpp>
#include <kvcache/session/chat_transcript.hpp>
#include <kvcache/session/chat_turn.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
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

}} // namespace kvcache
