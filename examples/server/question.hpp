// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/session/any_recompute.hpp>
#include <kvcache/session/reuse_mode.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/text/chat_template.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../support/marked_text.hpp"

namespace server {

/// A prompt, as a text or as token ids.
struct text_or_ids {
    std::string text = {};
    std::vector<kvcache::token_id> ids = {}; ///< Instead of the text, unless empty.
};

/// A request, read from its body.
struct question {
    bool chat = true;
    std::vector<kvcache::chat_message> messages = {};  ///< Of a chat.
    std::vector<support::marked_part> marked = {};     ///< Of a chat, in the order of its messages.
    kvcache::json tools = {};                          ///< Of a chat, for its template; null if there are none.
    kvcache::json variables = kvcache::json::object(); ///< Of a chat, for its template.
    std::vector<text_or_ids> prompts = {};             ///< Of a completion.
    std::string model = {};
    std::string user = {};
    int priority = 0;               ///< Of the requests of a client, those with a lower number go first.
    std::uint64_t client = 0;       ///< Who asks: clients get fair shares.
    std::string cache_salt = {};    ///< Requests with different salts reuse nothing of each other.
    kvcache::sampler sampling = {}; ///< With a random seed, unless the request has one.
    std::optional<std::size_t> max_tokens = {};
    std::vector<std::string> stop = {};
    std::size_t choices = 1;
    std::optional<std::size_t> log_probabilities = {};
    std::optional<kvcache::reuse_mode> mode = {};         ///< What is reused; empty: as --mode says.
    std::optional<kvcache::any_recompute> recompute = {}; ///< In mode `chunks`; empty: as --recompute says.
    bool bare = false; ///< The prompt's text is encoded without the tokens that begin a text.
    bool ignore_eos = false;
    bool stream = false;
    bool include_usage = false;
    bool show_tokens = false; ///< For the web page: report which tokens were reused.
    bool echo = false;        ///< A completion begins with its prompt.
    bool token_ids = false;   ///< Return the token ids of the answer too.
};

} // namespace server
