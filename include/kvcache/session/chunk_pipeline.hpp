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

/// Forward passes over selected rows of a lease; the rows between them are kept. Rows run in ascending order, at most
/// `max_batch_tokens` per pass. Each row sees the rows before it.
template <class Lease, class Model>
class selective_prefill {
public:
    selective_prefill(const Model& model, thread_pool& threads, std::size_t max_batch_tokens)
        : model_(model), max_batch_tokens_(max_batch_tokens), pass_(model.template make_forward_pass<Lease>(threads)) {}

    /// Returns rows times layers computed so far.
    [[nodiscard]] std::size_t layer_rows() const noexcept { return layer_rows_; }

    /// Computes the rows that the lease does not keep, and writes the logits of the last one. `tokens` are the tokens
    /// of the lease's rows. With `bottom_right` the j-th of m rows from the end sees all but the last m - j
    /// positions, later ones included, as in CacheBlend; then all rows run in one pass.
    void run(const Lease& lease, std::span<const token_id> tokens, bool bottom_right, std::span<float> logits) {
        rows_.clear();
        for (std::size_t row = 0; row < tokens.size(); ++row)
            if (!lease.opened().keeps(row))
                rows_.push_back(row);
        limits_.clear();
        for (std::size_t j = 0; bottom_right && j < rows_.size(); ++j)
            limits_.push_back(lease.first() + tokens.size() - rows_.size() + j);
        const std::size_t most = bottom_right ? rows_.size() : max_batch_tokens_;
        for (std::size_t at = 0; at < rows_.size(); at += most) {
            const bool last = at + most >= rows_.size();
            begin(lease, tokens, at, most, last ? logits_mode::last : logits_mode::none);
            for (const layer_id layer : model_.layers())
                pass_.forward(layer);
            layer_rows_ += part_.tokens.size() * model_.layers().size();
            if (last)
                pass_.logits(logits);
        }
    }

    /// Returns the deviations, in one layer, of the kept rows of `known` that are computed here: the squared distance
    /// between the computed and the stored keys or values, in ascending order of rows. `known` are the rows of this
    /// lease, or of a lease for the same tokens that kept more rows. All rows that this lease does not keep are
    /// computed up to the layer. If it keeps every kept row of `known`, all rows are computed.
    [[nodiscard]] std::vector<float> deviations(const Lease& lease, std::span<const token_id> tokens,
                                                std::span<const spliced_row> known, std::size_t layer,
                                                deviation_metric compared, const rope* rotation) {
        expects(layer < model_.layers().size(), "the layer that is compared is one of the model's");
        rows_.clear();
        limits_.clear();
        bool all = true;
        std::size_t behind = 0;
        for (std::size_t row = 0; row < known.size(); ++row)
            if (known[row].kept) {
                all = all && lease.opened().keeps(row);
                behind = row + 1;
            }
        for (std::size_t row = 0; row < behind; ++row)
            if (all || !lease.opened().keeps(row))
                rows_.push_back(row);
        std::vector<float> made;
        for (std::size_t at = 0; at < rows_.size(); at += max_batch_tokens_) {
            begin(lease, tokens, at, max_batch_tokens_, logits_mode::none);
            for (std::size_t i = 0; i < layer; ++i)
                pass_.forward(model_.layers()[i]);
            pass_.project(model_.layers()[layer]);
            layer_rows_ += part_.tokens.size() * layer;
            for (std::size_t i = 0; i < part_.rows.size(); ++i)
                if (known[part_.rows[i]].kept)
                    made.push_back(
                        distance(lease, i, known[part_.rows[i]], model_.layers()[layer], compared, rotation));
        }
        return made;
    }

private:
    void begin(const Lease& lease, std::span<const token_id> tokens, std::size_t at, std::size_t most,
               logits_mode wanted) {
        const std::size_t count = std::min(most, rows_.size() - at);
        ids_.clear();
        for (std::size_t i = at; i < at + count; ++i)
            ids_.push_back(tokens[rows_[i]]);
        part_ = {.lease = &lease,
                 .row = rows_[at],
                 .tokens = ids_,
                 .wanted = wanted,
                 .rows = std::span(rows_).subspan(at, count),
                 .limits = limits_.empty() ? std::span<const std::size_t>() : std::span(limits_).subspan(at, count)};
        pass_.begin(std::span(&part_, 1));
    }

    // The squared distance of row `i` of the pass from the stored row `at`.
    [[nodiscard]] float distance(const Lease& lease, std::size_t i, const spliced_row& at, layer_id layer,
                                 deviation_metric compared, const rope* rotation) {
        const std::size_t heads = lease.shape().kv_heads, dim = lease.shape().head_dim;
        const std::size_t lane = at.row % tile_tokens;
        scratch_.resize(std::max(dim, padded_head_dim(dim)) * tile_tokens);
        turn_.resize(dim);
        fresh_.resize(dim);
        const bool keys = compared == deviation_metric::keys;
        const std::span<const float> fresh = keys ? pass_.keys(i) : pass_.values(i); // (kv_heads, head_dim), no RoPE
        if (keys && rotation != nullptr)
            rotation->fill(static_cast<std::int64_t>(lease.first() + part_.rows[i]) - at.base, turn_);
        float sum = 0.0f;
        for (std::size_t head = 0; head < heads; ++head) {
            const auto now = fresh.subspan(head * dim, dim);
            const page_tile tile{layer, head_id{static_cast<std::uint32_t>(head)}, at.row / tile_tokens};
            const auto bytes = std::span<const std::byte>(lease.storage().bytes(at.page));
            const float* stored =
                keys ? lease.codec().keys(bytes, tile, scratch_) : lease.codec().values(bytes, tile, scratch_);
            if (keys && rotation != nullptr)
                rotate_head(now, turn_, fresh_);
            else
                ranges::copy(now, fresh_.begin());
            if constexpr (page_writer<std::remove_cvref_t<decltype(lease.codec())>>) { // as it is stored
                if (keys)
                    lease.codec().transform_key(fresh_);
                else
                    lease.codec().transform_value(fresh_);
            }
            for (std::size_t d = 0; d < dim; ++d) {
                const float off =
                    fresh_[d] - (keys ? stored[d * tile_tokens + lane] : stored[lane * padded_head_dim(dim) + d]);
                sum = std::fma(off, off, sum);
            }
        }
        return sum;
    }

    const Model& model_;
    std::size_t max_batch_tokens_;
    decltype(std::declval<const Model&>().template make_forward_pass<Lease>(std::declval<thread_pool&>())) pass_;
    std::size_t layer_rows_ = 0;
    batch_slice<Lease> part_;
    std::vector<std::size_t> rows_, limits_;
    std::vector<token_id> ids_;
    std::vector<float> scratch_, turn_, fresh_;
};

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
    /// the model cannot be moved to another position. After an error only exact tokens may have been stored.
    [[nodiscard]] result<spliced_prompt<Cache>> prefill(std::span<const token_id> tokens, reuse_mode mode,
                                                        std::size_t cacheable = static_cast<std::size_t>(-1)) {
        if (auto valid = exact_.check(0, tokens); !valid)
            return valid.error();
        if (mode == reuse_mode::chunks)
            if (auto can = detail::keys_can_move(model_); !can)
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
        if (auto chosen = choose(made, tokens, found, again); !chosen)
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

    // Collects from the recompute policy the tokens to recompute.
    [[nodiscard]] result<void> choose(spliced_prompt<Cache>& made, std::span<const token_id> tokens,
                                      const typename chunk_reuse<Cache>::match_type& found,
                                      std::vector<std::size_t>& again) {
        const auto& policy = cache_.core().recompute();
        using state = std::remove_cvref_t<decltype(policy)>;
        if constexpr (deviation_recompute_state<state>) {
            std::vector<spliced_row> known;
            auto off = judge(made, tokens, found, again, 0, known); // with every reused token kept, for now
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
            for (const reused_span& run : found.map().runs) // a policy of exact prefixes recomputes every reused token
                for (std::size_t i = 0; i < run.count; ++i)
                    again.push_back(run.first + i);
        }
        return {};
    }

    // Returns the deviation of reused tokens, `deeper` layers after the policy's check layer. With an empty `again`
    // it covers all reused tokens, otherwise only those in `again`. The first call fills `known`.
    [[nodiscard]] result<std::vector<float>> judge(spliced_prompt<Cache>& made, std::span<const token_id> tokens,
                                                   const typename chunk_reuse<Cache>::match_type& found,
                                                   std::span<const std::size_t> again, std::size_t deeper,
                                                   std::vector<spliced_row>& known) {
        auto lease = chunks_.reserve(made.sequence, tokens.size() - made.sequence.size(), found, again);
        if (!lease)
            return lease.error();
        if (known.empty())
            known.assign(lease->opened().spliced().begin(), lease->opened().spliced().end());
        const auto& policy = cache_.core().recompute();
        return prefilling_.deviations(*lease, tokens.subspan(lease->first()), known, policy.check_layer() + deeper,
                                      policy.compared(), &model_.rotation());
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
    selective_prefill<typename Cache::lease, Model> prefilling_;
};

}} // namespace kvcache
