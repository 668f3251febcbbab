// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <cstddef>
#include <string>
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
};

/// The result of a turn.
struct chat_reply {
    std::string text = {};
    std::vector<token_id> ids = {}; ///< The sampled tokens.
    std::size_t prompt = 0;         ///< Tokens of the prompt.
    std::size_t reused = 0;
    std::size_t prefilled = 0;
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

}} // namespace kvcache
