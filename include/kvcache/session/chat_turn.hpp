// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// What a conversation is held with. Cheap to copy.
struct chat_form {
    tokenizer words;
    chat_template form;
    chat_options rendering = {};
};

/// How a conversation stands. ids = cached + pending, always.
struct chat_info {
    std::size_t messages = 0;
    std::size_t ids = 0;     ///< Tokens of what was said.
    std::size_t cached = 0;  ///< Of them, those with keys and values.
    std::size_t pending = 0; ///< 0 or 1: the token said last has not run. More after guesses, if pages are coded.
    std::size_t context = 0; ///< Tokens it may grow to.
    std::size_t turns = 0;   ///< Finished since it began.
    bool exact = true;       ///< False once tokens were dropped between others that stayed.
};

/// A turn that begins: what is to run, on top of what is known. The session does not change until it is finished.
template <class Cache>
struct chat_turn {
    std::vector<chat_message> messages; ///< After the overflow policy.
    rendered_chat rendered;
    std::vector<token_id> prompt;
    typename Cache::sequence sequence; ///< Holds the first tokens of the prompt, at least one fewer than all.
    bool extends = false;              ///< Only what is new was encoded.
    std::size_t dropped = 0;           ///< Messages that the overflow policy took away.
    std::size_t forgotten = 0;         ///< Tokens that it took out of the prompt.
};

/// How a turn went.
struct chat_reply {
    std::string text = {};
    std::vector<token_id> ids = {}; ///< As they were sampled.
    std::size_t prompt = 0;         ///< Tokens.
    std::size_t reused = 0;
    std::size_t prefilled = 0;
    std::size_t dropped = 0;   ///< Messages that did not fit.
    std::size_t forgotten = 0; ///< Tokens that did not.
    bool exact = true;         ///< Whether the logits are those of a fresh prefill of the prompt.
    bool extends = false;
    bool stopped = false;                ///< By a stop token or string, not by the length.
    std::vector<std::string> notes = {}; ///< In strict mode: what looks odd. Nothing depends on it.
};

/// What looks odd about a turn on top of a conversation, whose last answer is `complete` if the model ended it.
template <class Cache>
[[nodiscard]] std::vector<std::string> oddities_of(const chat_turn<Cache>& turn, const chat_info& before,
                                                   bool complete) {
    std::vector<std::string> notes;
    if (!complete)
        notes.push_back("the answer before was cut by its length, not ended by the model");
    if (!turn.extends && before.turns > 0)
        notes.push_back("the messages do not extend the conversation: token " + std::to_string(turn.sequence.size()) +
                        " of " + std::to_string(before.ids) + " is the first that runs again");
    return notes;
}

} // namespace kvcache
