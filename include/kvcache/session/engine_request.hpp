// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/log_probabilities.hpp>
#include <kvcache/session/sampler.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// A request of an engine, in the order of arrival.
enum class request_id : std::uint64_t {};

/// A token of an answer, as it is said.
struct said_token {
    std::size_t choice = 0;
    std::size_t index = 0; ///< Its place in the answer.
    token_id token = {};
    std::optional<float> log_probability = {}; ///< By the model's own logits, where the request asked.
    std::vector<token_score> top = {};         ///< The likeliest instead.
};

/// What a listener says to a token.
enum class hearing {
    go_on,
    enough, ///< This answer ends here, and is complete.
    cancel, ///< The whole request ends here.
};

/// Why an answer ended.
enum class finish_reason {
    stopped,   ///< By a stop token, or because the listener had enough.
    length,    ///< By max_tokens, or the model's last position.
    cancelled, ///< On the caller's request.
    expired,   ///< Its deadline passed.
    failed,    ///< See the error.
};

/// One of a request's answers. Its last token was said and never run, so the sequence ends before it.
template <class Cache>
struct engine_answer {
    std::vector<token_id> ids = {};
    finish_reason why = finish_reason::cancelled;
    std::optional<typename Cache::sequence> sequence = {}; ///< What of prompt and answer ran.
};

/// How a request ended.
template <class Cache>
struct engine_outcome {
    std::vector<engine_answer<Cache>> answers = {};
    std::optional<error> failure = {};
    std::size_t reused = 0;    ///< Tokens of the prompt whose keys and values were known.
    std::size_t prefilled = 0; ///< Tokens of the prompt that ran, again after it had to make way too.
    std::size_t drafted = 0;
    std::size_t accepted = 0; ///< Of the drafted tokens.
};

/// What an engine is asked. The listeners are called by the thread that steps the engine, and must not throw.
template <class Cache>
struct engine_request {
    std::vector<token_id> prompt = {};
    /// Holds the first tokens of the prompt, not all; or none. If it is approximate so is the answer, unless pages run
    /// out and the request runs again from its tokens.
    std::optional<typename Cache::sequence> known = {};
    sampler draw = {}; ///< Answer c draws as its choice + c.
    stopping until = {};
    std::size_t choices = 1;
    std::size_t draft = 0; ///< Most tokens that are guessed ahead by prompt lookup; they change no token.
    std::optional<std::size_t> log_probabilities = {}; ///< Wanted, with so many of the likeliest tokens.
    std::optional<std::chrono::steady_clock::time_point> deadline = {};
    std::function<hearing(const said_token&)> hear = {};
    std::function<void(engine_outcome<Cache>&&)> done = {}; ///< Called once, whatever happens.
};

/// Bounds of an engine.
struct engine_limits {
    std::size_t rows = 256;    ///< Of a step's forward pass.
    std::size_t lanes = 64;    ///< Answers under way at once.
    std::size_t waiting = 256; ///< Requests in the queue; more are refused.
};

/// What an engine has done.
struct engine_stats {
    std::size_t waiting = 0; ///< Requests.
    std::size_t running = 0; ///< Requests.
    std::size_t finished = 0;
    std::size_t refused = 0;
    std::size_t preempted = 0; ///< Times a request made way for an older one, to run again.
    std::size_t steps = 0;
    std::size_t reused = 0; ///< Tokens, from here on.
    std::size_t prefilled = 0;
    std::size_t said = 0;
    std::size_t drafted = 0;
    std::size_t accepted = 0;
};

} // namespace kvcache
