// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/index/chunking.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/forward_pass.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/reuse_mode.hpp>
#include <kvcache/session/selective_prefill.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A prompt that has run, with parts of it reused from any position.
template <class Cache>
struct spliced_prompt {
    typename Cache::sequence sequence;
    matrix logits; ///< Logits of the last token. (1, vocabulary)
    reuse_counts counts = {};
    std::vector<prompt_span> spans = {}; ///< Matches in the cache; empty in baseline mode.
};

/// How the chunks of a text are computed before they are stored.
struct warmup_options {
    bool alone = true;           ///< Each chunk is computed by itself, not after the text before it.
    std::size_t sink_tokens = 0; ///< If alone: first tokens of the text to precede it; not stored with it.
    std::size_t overlap = 0;     ///< If alone: adjacent tokens to precede it; not stored with it.
};

/// The result of `warm`.
struct warmup_report {
    std::size_t chunks = 0;
    std::size_t tokens = 0;    ///< Tokens of the text that were stored.
    std::size_t left_over = 0; ///< Tokens of chunks that are too short to be found again.
    std::string warning = {};  ///< What the caller should change; empty if everything is stored.
};

/// A pipeline that also reuses chunks: tokens in, logits out. A cached prefix is exact, as in `pipeline`. Chunks
/// found at other positions are spliced in, and the recompute policy of the cache selects the tokens to recompute.
/// The recomputation is part of the call. One call at a time.
template <class Cache, class Model>
    requires knows_chunks<Cache>
class chunk_pipeline {
public:
    /// Options of a chunk pipeline.
    struct options {
        index::chunking split = {};
        bool store = true;                  ///< Store the chunks of tokens that were computed exactly.
        std::size_t max_batch_tokens = 256; ///< Maximum rows of one forward pass.
        bool bottom_right = false;          ///< Use the mask of CacheBlend: recomputed tokens see later ones.
    };

    chunk_pipeline(Cache& cache, const Model& model, thread_pool& threads, options how)
        : cache_(cache),
          chunks_(cache),
          model_(model),
          how_(std::move(how)),
          exact_(cache, model, threads, how_.max_batch_tokens),
          prefilling_(model, threads, how_.max_batch_tokens) {}

    /// The exact pipeline underneath, for decoding.
    [[nodiscard]] pipeline<Cache, Model>& exact() noexcept { return exact_; }

    /// Runs a prompt on top of what the cache holds of it. Only the first `cacheable` tokens of the prompt may be
    /// published for later prompts. Errors: those of pipeline::prefill; unsupported, in mode `chunks`, if the keys of
    /// the model cannot be moved to another position, or a layer is recurrent. After an error only exact tokens may
    /// have been stored.
    [[nodiscard]] result<spliced_prompt<Cache>> prefill(std::span<const token_id> tokens, reuse_mode mode,
                                                        std::size_t cacheable = static_cast<std::size_t>(-1)) {
        if (auto valid = exact_.check(0, tokens); !valid)
            return valid.error();
        if (mode == reuse_mode::chunks)
            if (auto can = can_move(); !can)
                return can.error();
        auto sequence = mode == reuse_mode::baseline ? cache_.open() : cache_.open(tokens);
        sequence.set_cacheable_limit(cacheable);
        spliced_prompt<Cache> made{std::move(sequence), {}, {.prompt = tokens.size()}, {}};
        made.counts.exact = made.sequence.size();
        const std::size_t before = prefilling_.layer_rows();
        auto ran = mode == reuse_mode::chunks ? splice(made, tokens) : finish(made, tokens);
        if (!ran)
            return ran.error();
        made.counts.layer_rows += prefilling_.layer_rows() - before;
        made.counts.prefilled = tokens.size() - made.counts.exact - made.counts.approximate - made.counts.recomputed;
        if (how_.store)
            store(made.sequence, std::min(made.sequence.exact(), cacheable));
        return made;
    }

    /// Computes the chunks of a text and stores them; any later prompt can reuse them. Errors: those of prefill.
    [[nodiscard]] result<warmup_report> warm(std::span<const token_id> text, const warmup_options& how) {
        if (auto valid = exact_.check(0, text); !valid)
            return valid.error();
        if (auto can = chunks_.supported(); !can)
            return can.error();
        warmup_report done{.tokens = text.size()};
        for (const index::token_run& chunk : how_.split.split(text)) {
            std::vector<token_id> prompt;
            if (how.alone) {
                const std::size_t sinks = std::min(how.sink_tokens, chunk.first);
                const std::size_t overlap = std::min(how.overlap, chunk.first - sinks);
                prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(sinks));
                append(prompt, text.subspan(chunk.first - overlap, overlap + chunk.count));
            } else {
                append(prompt, text.first(chunk.first + chunk.count));
            }
            auto ran = exact_.prefill(prompt);
            if (!ran)
                return ran.error();
            const std::size_t added = chunks_.add(ran->sequence, prompt.size() - chunk.count, chunk.count);
            done.chunks += added > 0 ? 1 : 0;
            done.left_over += chunk.count - added;
        }
        if (done.left_over > 0)
            done.warning = std::to_string(done.left_over) + " of " + std::to_string(done.tokens) +
                           " tokens are in chunks too short to be found again; they run with every prompt";
        return done;
    }

private:
    // Whether chunks can move, in the cache's layers and with the model's keys.
    [[nodiscard]] result<void> can_move() const {
        if (auto can = chunks_.supported(); !can)
            return can;
        return detail::keys_can_move(model_);
    }

    static void append(std::vector<token_id>& to, std::span<const token_id> more) {
        to.insert(to.end(), more.begin(), more.end());
    }

    // Computes the remaining tokens exactly.
    [[nodiscard]] result<void> finish(spliced_prompt<Cache>& made, std::span<const token_id> tokens) {
        return extend(made, tokens, tokens.size());
    }

    // Computes the tokens up to `last` after the end of the sequence.
    [[nodiscard]] result<void> extend(spliced_prompt<Cache>& made, std::span<const token_id> tokens, std::size_t last) {
        const std::size_t first = made.sequence.size();
        if (first >= last)
            return {};
        made.counts.layer_rows += (last - first) * model_.layers().size();
        const batch_entry<Cache> one{&made.sequence, tokens.subspan(first, last - first),
                                     last == tokens.size() ? logits_mode::last : logits_mode::none};
        return exact_.extend(std::span(&one, 1), made.logits);
    }

    [[nodiscard]] result<void> splice(spliced_prompt<Cache>& made, std::span<const token_id> tokens) {
        const typename chunk_reuse<Cache>::match_type found = chunks_.match(made.sequence, tokens);
        const reuse_map& map = found.map();
        made.spans = map.spans;
        if (map.runs.empty())
            return finish(made, tokens);
        // The tokens before the first one that is kept are exact and are published.
        const std::size_t from = chunks_.splice_position(map.runs.front().first);
        if (from < made.sequence.size()) {
            made.sequence.truncate(from);
            made.counts.exact = made.sequence.size();
        }
        if (auto ran = extend(made, tokens, from); !ran)
            return ran;
        std::vector<std::size_t> again;
        if (auto chosen = prefilling_.select(cache_.core().recompute(), chunks_, made.sequence, tokens, found, again);
            !chosen)
            return chosen;
        made.counts.recomputed = again.size();
        made.counts.approximate = map.tokens(reuse_kind::approximate) - again.size();
        const std::size_t first = map.first_kept(again);
        if (auto ran = extend(made, tokens, first < tokens.size() ? chunks_.splice_position(first) : first); !ran)
            return ran;
        if (made.sequence.size() == tokens.size())
            return {};
        auto lease = chunks_.reserve(made.sequence, tokens.size() - made.sequence.size(), found, again);
        if (!lease)
            return lease.error();
        made.logits.resize(1, static_cast<Eigen::Index>(model_.vocabulary()));
        const auto rest = tokens.subspan(lease->first());
        prefilling_.run(*lease, rest, how_.bottom_right, {made.logits.data(), model_.vocabulary()});
        lease->commit(rest);
        return {};
    }

    void store(const typename Cache::sequence& from, std::size_t tokens) {
        for (const index::token_run& chunk : how_.split.split(from.tokens()))
            if (chunk.first + chunk.count <= tokens)
                static_cast<void>(chunks_.add(from, chunk.first, chunk.count));
    }

    Cache& cache_;
    chunk_reuse<Cache> chunks_;
    const Model& model_;
    options how_;
    pipeline<Cache, Model> exact_;
    selective_prefill<Cache, Model> prefilling_;
};

}} // namespace kvcache
