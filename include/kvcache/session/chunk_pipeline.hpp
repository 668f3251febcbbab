// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/reuse.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/index/chunking.hpp>
#include <kvcache/kernel/team.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/weaving.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// What of a prompt may come from the cache.
enum class reuse_mode {
    baseline, ///< Nothing.
    prefix,   ///< What is exact: its longest known beginning.
    chunks,   ///< Chunks too, wherever they stand; what follows one is approximate.
};

/// What a prompt took, in tokens.
struct reuse_counts {
    std::size_t prompt = 0;
    std::size_t exact = 0;       ///< Reused, the same bits as if computed.
    std::size_t approximate = 0; ///< Reused as they were elsewhere.
    std::size_t recomputed = 0;  ///< Known from elsewhere, and run again.
    std::size_t prefilled = 0;   ///< Not known, and run.
    std::size_t layer_rows = 0;  ///< Rows times layers that ran, for repair too.
};

/// A prompt that has run, parts of it reused from anywhere.
template <class Cache>
struct woven_prompt {
    typename Cache::sequence sequence;
    matrix logits; ///< Of the last token. (1, vocabulary)
    reuse_counts counts = {};
    std::vector<reuse_span> spans = {}; ///< What was found; empty for the baseline.
};

/// How a text's chunks are run before they are stored.
struct warming {
    bool alone = true;           ///< Each by itself; else in the text, behind what comes before it.
    std::size_t sink_tokens = 0; ///< Alone: behind the text's first tokens, which are not stored with it.
    std::size_t overlap = 0;     ///< Alone: behind the last tokens before it, likewise.
};

/// What `warm` has stored.
struct warmed {
    std::size_t chunks = 0;
    std::size_t tokens = 0;    ///< Of the text.
    std::size_t left_over = 0; ///< Tokens of chunks that are too short to be found again.
    std::string warning = {};  ///< What somebody should change; empty if all is stored.
};

/// A pipeline that also reuses chunks: tokens in, logits out. What a prompt shares with the cache's index of prefixes
/// is exact, as in `pipeline`; chunks that stand elsewhere are woven in, and the cache's recompute policy says which of
/// their tokens run again. The repair is part of the call. One call at a time.
template <class Cache, class Model>
    requires(Cache::knows_chunks)
class chunk_pipeline {
public:
    struct options {
        chunking split = {};
        bool store = true;         ///< Remember the chunks of what was computed exactly.
        std::size_t rows = 256;    ///< Of one forward pass, at most.
        bool bottom_right = false; ///< The mask of CacheBlend, for comparisons: tokens that run again see later ones.
    };

    chunk_pipeline(Cache& cache, const Model& model, team& threads, options how)
        : cache_(cache),
          model_(model),
          how_(std::move(how)),
          exact_(cache, model, threads, how_.rows),
          weaving_(model, threads, how_.rows) {}

    /// What has been asked of prompts before, and of their answers.
    [[nodiscard]] pipeline<Cache, Model>& exact() noexcept { return exact_; }

    /// Runs a prompt on top of what is known of it; of its own tokens the first `cacheable` may become known to later
    /// prompts. Errors: as pipeline::feed; unsupported, in the mode chunks, if the model's keys cannot move. Then no
    /// more is stored than exact tokens.
    [[nodiscard]] result<woven_prompt<Cache>> feed(std::span<const token_id> tokens, reuse_mode mode,
                                                   std::size_t cacheable = static_cast<std::size_t>(-1)) {
        if (auto valid = exact_.check(0, tokens); !valid)
            return valid.error();
        if (mode == reuse_mode::chunks)
            if (auto can = movable(); !can)
                return can.error();
        auto sequence = mode == reuse_mode::baseline ? cache_.open() : known_prefix(tokens);
        sequence.share_at_most(cacheable);
        woven_prompt<Cache> made{std::move(sequence), {}, {.prompt = tokens.size()}, {}};
        made.counts.exact = made.sequence.size();
        const std::size_t before = weaving_.layer_rows();
        auto ran = mode == reuse_mode::chunks ? weave(made, tokens) : finish(made, tokens);
        if (!ran)
            return ran.error();
        made.counts.layer_rows += weaving_.layer_rows() - before;
        made.counts.prefilled = tokens.size() - made.counts.exact - made.counts.approximate - made.counts.recomputed;
        if (how_.store)
            store(made.sequence, std::min(made.sequence.exact(), cacheable));
        return made;
    }

    /// Runs a text's chunks and stores them, to be found in any prompt. Errors: as feed.
    [[nodiscard]] result<warmed> warm(std::span<const token_id> text, const warming& how) {
        if (auto valid = exact_.check(0, text); !valid)
            return valid.error();
        warmed done{.tokens = text.size()};
        for (const token_run& chunk : how_.split.split(text)) {
            std::vector<token_id> prompt;
            if (how.alone) {
                const std::size_t sinks = std::min(how.sink_tokens, chunk.first);
                const std::size_t overlap = std::min(how.overlap, chunk.first - sinks);
                prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(sinks));
                append(prompt, text.subspan(chunk.first - overlap, overlap + chunk.count));
            } else {
                append(prompt, text.first(chunk.first + chunk.count));
            }
            auto ran = exact_.feed(prompt);
            if (!ran)
                return ran.error();
            if (cache_.note(ran->sequence, prompt.size() - chunk.count, chunk.count))
                ++done.chunks;
            else
                done.left_over += chunk.count;
        }
        if (done.left_over > 0)
            done.warning = std::to_string(done.left_over) + " of " + std::to_string(done.tokens) +
                           " tokens are in chunks too short to be found again; they run with every prompt";
        return done;
    }

private:
    static void append(std::vector<token_id>& to, std::span<const token_id> more) {
        to.insert(to.end(), more.begin(), more.end());
    }

    [[nodiscard]] result<void> movable() const {
        if constexpr (requires { model_.keys_can_move(); })
            return model_.keys_can_move();
        else
            return error{error_code::unsupported, "rope",
                         "the model does not say whether keys of one position can serve at another (keys_can_move)"};
    }

    [[nodiscard]] typename Cache::sequence known_prefix(std::span<const token_id> tokens) {
        auto found = cache_.match(tokens);
        const rerun plan = cache_.plan(found);
        return cache_.open(std::move(found), plan);
    }

    // Runs what is left of the tokens, exactly.
    [[nodiscard]] result<void> finish(woven_prompt<Cache>& made, std::span<const token_id> tokens) {
        return extend(made, tokens, tokens.size());
    }

    // Runs the tokens up to `last`, behind the sequence.
    [[nodiscard]] result<void> extend(woven_prompt<Cache>& made, std::span<const token_id> tokens, std::size_t last) {
        const std::size_t first = made.sequence.size();
        if (first >= last)
            return {};
        made.counts.layer_rows += (last - first) * model_.layers().size();
        return exact_.extend(made.sequence, tokens.subspan(first, last - first),
                             last == tokens.size() ? logits_of::last : logits_of::none, made.logits);
    }

    [[nodiscard]] result<void> weave(woven_prompt<Cache>& made, std::span<const token_id> tokens) {
        const typename Cache::reuse_type found = cache_.find(made.sequence, tokens);
        const reuse_map& map = found.map();
        made.spans = map.spans;
        if (map.runs.empty())
            return finish(made, tokens);
        // What runs before the first token that is kept is exact, and becomes known.
        if (auto ran = extend(made, tokens, map.runs.front().first); !ran)
            return ran;
        std::vector<std::size_t> again;
        if (auto chosen = choose(made, tokens, found, again); !chosen)
            return chosen;
        made.counts.recomputed = again.size();
        made.counts.approximate = map.tokens(reuse_kind::approximate) - again.size();
        if (auto ran = extend(made, tokens, first_kept(map, again, tokens.size())); !ran)
            return ran;
        if (made.sequence.size() == tokens.size())
            return {};
        auto lease = cache_.reserve(made.sequence, tokens.size() - made.sequence.size(), found, again);
        if (!lease)
            return lease.error();
        made.logits.resize(1, static_cast<Eigen::Index>(model_.vocabulary()));
        const auto rest = tokens.subspan(lease->first());
        weaving_.run(*lease, rest, how_.bottom_right, {made.logits.data(), model_.vocabulary()});
        lease->commit(rest);
        return {};
    }

    // Asks the recompute policy which tokens run again.
    [[nodiscard]] result<void> choose(woven_prompt<Cache>& made, std::span<const token_id> tokens,
                                      const typename Cache::reuse_type& found, std::vector<std::size_t>& again) {
        const auto& policy = cache_.recompute();
        using state = std::remove_cvref_t<decltype(policy)>;
        if constexpr (deviation_recompute_state<state>) {
            std::vector<woven_row> known;
            auto off = judge(made, tokens, found, again, 0, known); // everything kept, for now
            if (!off)
                return off.error();
            policy.select(found.map().runs, *off, again);
            if constexpr (filtering_recompute_state<state>)
                for (std::size_t i = 0; i < policy.filters() && !again.empty(); ++i) {
                    off = judge(made, tokens, found, again, i + 1, known);
                    if (!off)
                        return off.error();
                    policy.filter(i, found.map().runs, *off, again);
                }
        } else if constexpr (chunk_recompute_state<state>) {
            policy.select(found.map().runs, again);
        } else {
            for (const reused_run& run : found.map().runs) // a policy of exact prefixes keeps nothing else
                for (std::size_t i = 0; i < run.count; ++i)
                    again.push_back(run.first + i);
        }
        return {};
    }

    // How far reused tokens are off, `deeper` layers behind the first that is compared: all of them while none runs
    // again, else those. `known` is filled the first time.
    [[nodiscard]] result<std::vector<float>> judge(woven_prompt<Cache>& made, std::span<const token_id> tokens,
                                                   const typename Cache::reuse_type& found,
                                                   std::span<const std::size_t> again, std::size_t deeper,
                                                   std::vector<woven_row>& known) {
        auto lease = cache_.reserve(made.sequence, tokens.size() - made.sequence.size(), found, again);
        if (!lease)
            return lease.error();
        if (known.empty())
            known.assign(lease->woven().begin(), lease->woven().end());
        const auto& policy = cache_.recompute();
        return weaving_.deviations(*lease, tokens.subspan(lease->first()), known, policy.check_layer() + deeper,
                                   policy.compared(), &model_.rotation());
    }

    [[nodiscard]] static std::size_t first_kept(const reuse_map& map, std::span<const std::size_t> again,
                                                std::size_t none) {
        for (const reused_run& run : map.runs)
            for (std::size_t at = run.first; at < run.first + run.count; ++at) {
                if (again.empty() || again.front() != at)
                    return at;
                again = again.subspan(1);
            }
        return none;
    }

    void store(const typename Cache::sequence& from, std::size_t tokens) {
        for (const token_run& chunk : how_.split.split(from.tokens()))
            if (chunk.first + chunk.count <= tokens)
                static_cast<void>(cache_.note(from, chunk.first, chunk.count));
    }

    Cache& cache_;
    const Model& model_;
    options how_;
    pipeline<Cache, Model> exact_;
    weaving<typename Cache::lease, Model> weaving_;
};

} // namespace kvcache
