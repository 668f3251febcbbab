// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/session/any_recompute.hpp>
#include <kvcache/session/drafter.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/log_probabilities.hpp>
#include <kvcache/session/reuse_mode.hpp>
#include <kvcache/session/sampler.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Id of an engine request; ids ascend in order of arrival.
enum class request_id : std::uint64_t {};

/// A token of an answer or a prompt.
struct generated_token {
    std::size_t choice = 0;
    std::size_t index = 0; ///< Index in the answer, or the prompt.
    token_id token = {};
    std::optional<float> log_probability = {}; ///< From the unmodified logits of the model, if requested.
    std::vector<token_score> top = {};         ///< The most likely tokens at this position.
};

/// The verdict of `on_token` on a token.
enum class token_action {
    go_on,
    enough, ///< Ends this answer as complete.
    cancel, ///< Ends the whole request.
};

/// The reason why an answer ended.
enum class finish_reason {
    stopped,   ///< A stop token was drawn, or `on_token` returned `enough`.
    length,    ///< max_tokens or the last position of the model was reached.
    cancelled, ///< Cancelled by the caller.
    expired,   ///< The deadline passed.
    failed,    ///< An error; see engine_outcome::failure.
};

/// An answer of a request. Its last token was drawn but never run, so the sequence ends before it.
template <class Cache>
struct engine_answer {
    std::vector<token_id> ids = {};
    kvcache::finish_reason finish_reason = kvcache::finish_reason::cancelled;
    std::optional<typename Cache::sequence> sequence = {}; ///< The tokens of prompt and answer that have run.
};

/// The result of a request.
template <class Cache>
struct engine_outcome {
    std::vector<engine_answer<Cache>> answers = {};
    std::optional<error> failure = {};
    std::vector<generated_token> prompt = {}; ///< The tokens of the prompt, if they are scored; the first has no score.
    std::size_t reused = 0;      ///< Tokens of the prompt whose keys and values were cached, after the same prefix.
    std::size_t approximate = 0; ///< Tokens that were cached after another prefix, and kept: the answer is approximate.
    std::size_t recomputed = 0;  ///< Tokens that were cached after another prefix, and computed again.
    std::size_t prefilled = 0; ///< Tokens of the prompt that were computed, including recomputation after a preemption.
    std::size_t drafted = 0;
    std::size_t accepted = 0; ///< Drafted tokens that were accepted.
};

/// A request to an engine. The thread that steps the engine calls the callbacks, which must not throw.
template <class Cache>
struct engine_request {
    std::vector<token_id> prompt = {};
    kvcache::tenant tenant = {}; ///< Whose pages it reuses and stores; required by a cache with tenants.
    std::uint64_t client = 0;    ///< Whose request it is: clients get fair shares of queue, answers and rows.
    int priority = 0;            ///< Of the requests of a client, those with a lower number go first.
    /// When its first token is due, after its arrival: of requests with the same priority the one that is due first
    /// goes first, those that are never due last.
    std::optional<std::chrono::steady_clock::duration> first_token_target = {};
    /// Optional sequence that holds the first tokens of the prompt, but not all. If it is approximate, so is the
    /// answer, unless the request is preempted and recomputed from its tokens.
    std::optional<typename Cache::sequence> known = {};
    /// The parts of the prompt that may come from the cache. `chunks` needs a cache that knows chunks. With
    /// score_prompt every mode is `baseline`.
    reuse_mode mode = reuse_mode::prefix;
    /// In mode `chunks`: which reused tokens run again. A policy that selects by deviation runs all tokens of the
    /// chunks through the first layers in one step, which the other requests wait for.
    any_recompute recompute = {};
    sampler sampling = {}; ///< Answer c draws with choice + c.
    stop_criteria stop = {};
    std::size_t choices = 1;
    std::size_t draft = 0;         ///< Maximum tokens drafted at a time; drafts do not change the result. With
                                   ///< recurrent layers none are: a state cannot drop those that are refused.
    kvcache::drafter drafter = {}; ///< What drafts them; empty: prompt lookup.
    std::optional<std::size_t> log_probabilities = {}; ///< If set, log-probabilities are reported, with this number
                                                       ///< of most likely tokens.
    /// Reports the log-probabilities of the prompt too, with as many of the most likely tokens. The prompt is then
    /// computed in full, and nothing of it is reused.
    bool score_prompt = false;
    std::optional<std::chrono::steady_clock::time_point> deadline = {};
    std::function<token_action(const generated_token&)> on_token = {};
    std::function<void(engine_outcome<Cache>&&)> on_finish = {}; ///< Called exactly once.
};

/// Limits of an engine.
struct engine_limits {
    std::size_t max_batch_tokens = 256; ///< Maximum rows of a forward pass.
    /// The same while there are, or were in the last ten seconds, requests of several clients: a first token waits for
    /// the pass that runs when its request comes, and for its own.
    std::size_t shared_batch_tokens = 32;
    std::size_t max_sequences = 64;   ///< Maximum answers generated at once.
    std::size_t client_sequences = 0; ///< Maximum answers of one client at once; 0: no limit of its own.
    /// Of prompts, without cached tokens, and answers of a client; 0: no limit. An answer is charged when it ends.
    double client_tokens_per_second = 0.0;
    /// How long a request that runs alone waits for pages that sequences of the host hold, before it fails.
    std::chrono::steady_clock::duration patience = {};
    std::size_t waiting = 256; ///< Maximum queued requests; further ones are refused, those of the client that has the
                               ///< most of them first.
};

/// Counters of an engine.
struct engine_stats {
    std::size_t waiting = 0; ///< Queued requests.
    std::size_t running = 0; ///< Running requests.
    std::size_t finished = 0;
    std::size_t refused = 0;   ///< By a full queue, when they came or while they waited.
    std::size_t preempted = 0; ///< Preemptions of a request in favor of an older one, or of another client's.
    std::size_t steps = 0;
    std::size_t rows = 0;    ///< Rows of all forward passes, those of running requests included.
    std::size_t on_time = 0; ///< First tokens that came before they were due.
    std::size_t late = 0;    ///< First tokens that came later.
    std::size_t reused = 0;  ///< Tokens, as are the counters below.
    std::size_t prefilled = 0;
    std::size_t approximate = 0;
    std::size_t recomputed = 0;
    std::size_t generated = 0;
    std::size_t drafted = 0;
    std::size_t accepted = 0;
};

}} // namespace kvcache
