// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/basic_cache.hpp>
#include <kvcache/cache/snapshot_places.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/forward_pass.hpp>
#include <kvcache/session/layer_states.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Checks tokens that are to run: there is one, and all are in the vocabulary. Errors: out_of_range, in `field`. Cost:
/// O(tokens).
KVCACHE_LAZY [[nodiscard]] inline result<void> check_tokens(std::span<const token_id> tokens, std::size_t vocabulary,
                                                            const char* field) {
    if (tokens.empty())
        return error{error_code::out_of_range, field, "there is no token to run"};
    for (const token_id token : tokens)
        if (index_of(token) < 0 || static_cast<std::size_t>(index_of(token)) >= vocabulary)
            return error{error_code::out_of_range, field,
                         "token " + std::to_string(index_of(token)) + " is outside the vocabulary of " +
                             std::to_string(vocabulary)};
    return {};
}

}}} // namespace kvcache::detail

namespace kvcache { inline namespace KVCACHE_ABI {

/// Result of a prefill: the sequence of the whole prompt, and the logits that were asked for.
template <class Cache>
struct prefill_result {
    typename Cache::sequence sequence;
    matrix logits;             ///< (rows wanted, vocabulary)
    std::size_t reused = 0;    ///< Tokens taken from the cache.
    std::size_t prefilled = 0; ///< Tokens computed.
    lookup_result found;       ///< What was cached, and why that ended where it did.
};

/// One item of a batch: a sequence and the tokens to run after it.
template <class Cache>
struct batch_entry {
    typename Cache::sequence* sequence = nullptr;
    std::span<const token_id> tokens = {};
    logits_mode wanted = logits_mode::last;
    /// An open lease of the sequence of which `rows` run, ascending; the caller commits it. If null, the tokens run in
    /// a lease of their own, which is committed.
    const typename Cache::lease* open = nullptr;
    std::span<const std::size_t> rows = {};
    /// Where the tokens, which are of a prompt, leave snapshots of recurrent layers: what pipeline::snapshots_in
    /// returned for it. If null, they follow a prompt.
    const std::vector<std::size_t>* snapshots = nullptr;
};

/// Tokens in, logits out: acquire, forward, commit. A row's logits have the same bits for any reuse,
/// prefill chunk, batch and number of threads. One call at a time. Requires: the cache, the model and the threads
/// outlive it, and the cache is not moved.
template <class Cache, class Model>
class pipeline {
public:
    using lease = typename Cache::lease;

    /// At most `max_batch_tokens` rows run in one forward pass. Scratch memory grows with it; results do not depend on
    /// it.
    /// `snapshots`: where the states of recurrent layers stay cached, if the model has any.
    pipeline(Cache& cache, const Model& model, thread_pool& threads, std::size_t max_batch_tokens = 256,
             snapshot_places snapshots = {})
        : cache_(cache),
          model_(model),
          max_batch_tokens_(max_batch_tokens),
          threads_(threads),
          states_(cache, model, snapshots),
          pass_(model.template make_forward_pass<lease>(threads)) {
        expects(max_batch_tokens > 0, "a forward pass has at least one row");
    }

    /// Runs a prompt: reuses its cached prefix, computes the rest.
    /// Errors: out_of_range for an empty prompt, a token outside the vocabulary, or more tokens than the model has
    /// positions; out_of_memory. Nothing has changed then; with layer groups, the parts of the prompt that were
    /// computed before stay cached.
    [[nodiscard]] result<prefill_result<Cache>> prefill(std::span<const token_id> tokens,
                                                        logits_mode wanted = logits_mode::last, const tenant& of = {}) {
        if (auto valid = check(0, tokens); !valid)
            return valid.error();
        // The index finds the cached prefix, the recompute policy chooses what to compute, eviction makes space.
        // With layer groups a lease has window blocks for all its rows: a prompt is computed in parts.
        acquire_options how{.tenant = of, .max_batch_tokens = max_batch_tokens_};
        if constexpr (Cache::core_type::grouped)
            how.rows = max_batch_tokens_;
        auto got = cache_.acquire(tokens, how);
        if (!got)
            return got.error();
        const std::vector<std::size_t> places = snapshots_in(got->found);
        const std::size_t reused = got->lease.first();
        prefill_result<Cache> made{std::move(got->sequence), {}, reused, tokens.size() - reused, got->found};
        {
            const lease_guard at_the_end{leases_};
            const auto some = tokens.subspan(reused, got->lease.rows());
            leases_.push_back(std::move(got->lease));
            batch_entry<Cache> first{&made.sequence, some, wanted_of(wanted, reused + some.size(), tokens)};
            first.snapshots = &places;
            if (auto ran = compute(std::span(&first, 1), made.logits); !ran)
                return ran.error();
        }
        if (made.sequence.size() < tokens.size())
            if (auto ran = prefill_rest(tokens, wanted, places, made); !ran)
                return ran.error();
        return result<prefill_result<Cache>>(std::move(made)); // nvcc copies what is named
    }

    /// Runs tokens after those of a sequence. Returns the logits that `wanted` selects, (rows, vocabulary).
    /// Errors: as prefill, and io where attention runs on a device; the sequence is as before, or ends at a snapshot
    /// of a recurrent model's states if those after its last token were not known.
    [[nodiscard]] result<matrix> extend(typename Cache::sequence& sequence, std::span<const token_id> tokens,
                                        logits_mode wanted = logits_mode::last) {
        matrix logits;
        const batch_entry<Cache> one{&sequence, tokens, wanted};
        if (auto ran = extend(std::span(&one, 1), logits); !ran)
            return ran.error();
        return logits;
    }

    /// Runs tokens after those of several different sequences in shared forward passes. `logits` is resized to
    /// (rows wanted, vocabulary), in the order of the batch; decoding into the same matrix allocates nothing as long as
    /// the sequences have room. Tokens may be those of the sequences themselves. Errors, and what is thrown: as above,
    /// for every sequence.
    [[nodiscard]] result<void> extend(std::span<const batch_entry<Cache>> batch, matrix& logits) {
        for (const batch_entry<Cache>& one : batch)
            if (auto ready = restore(*one.sequence); !ready)
                return ready;
        return extend_known(batch, logits);
    }

    /// Checks that tokens can run after `before` others. Errors: out_of_range.
    [[nodiscard]] result<void> check(std::size_t before, std::span<const token_id> tokens) const {
        if (auto valid = detail::check_tokens(tokens, model_.vocabulary(), "tokens"); !valid)
            return valid;
        if (auto fits = states_.check(); !fits)
            return fits;
        if (tokens.size() > max_positions() - std::min(before, max_positions()))
            return error{error_code::out_of_range, "max_positions",
                         std::to_string(before + tokens.size()) + " tokens are past the model's " +
                             std::to_string(max_positions()) + " positions"};
        return {};
    }

    /// Where a prompt leaves snapshots of recurrent layers, of which a look at the cache found so much. Throws:
    /// bad_alloc.
    [[nodiscard]] std::vector<std::size_t> snapshots_in(const lookup_result& found) const {
        return states_.places_in(found);
    }
    /// Whether a sequence that drops tokens loses the states after those that it keeps, so that they run again from a
    /// snapshot: the model has recurrent layers.
    [[nodiscard]] bool has_states() const noexcept { return states_.any(); }
    /// The threads that it runs on.
    [[nodiscard]] thread_pool& threads() const noexcept { return threads_; }
    /// Positions the model can tell apart.
    [[nodiscard]] std::size_t max_positions() const noexcept { return model_.max_positions(); }

private:
    // The logits of a part of a prompt that ends at `end`.
    [[nodiscard]] static logits_mode wanted_of(logits_mode all, std::size_t end, std::span<const token_id> tokens) {
        return all == logits_mode::last && end < tokens.size() ? logits_mode::none : all;
    }
    // Computes a prompt after its first part. Errors: as extend.
    [[nodiscard]] result<void> prefill_rest(std::span<const token_id> tokens, logits_mode wanted,
                                            const std::vector<std::size_t>& places, prefill_result<Cache>& made) {
        matrix part;
        while (made.sequence.size() < tokens.size()) {
            const std::size_t at = made.sequence.size();
            const auto some = tokens.subspan(at, std::min(tokens.size() - at, max_batch_tokens_));
            batch_entry<Cache> one{&made.sequence, some, wanted_of(wanted, at + some.size(), tokens)};
            one.snapshots = &places;
            if (auto ran = extend_known(std::span(&one, 1), part); !ran)
                return ran;
            const Eigen::Index before = made.logits.rows();
            made.logits.conservativeResize(before + part.rows(), part.cols());
            made.logits.bottomRows(part.rows()) = part;
        }
        return {};
    }

    // The same where the states of recurrent layers are known.
    [[nodiscard]] result<void> extend_known(std::span<const batch_entry<Cache>> batch, matrix& logits) {
        const lease_guard at_the_end{leases_};
        if (auto reserved = reserve(batch); !reserved)
            return reserved;
        return compute(batch, logits);
    }

    // Computes tokens of a sequence again from its last snapshot, if the states after them are not known. Errors: as
    // extend; the sequence ends at the snapshot then.
    [[nodiscard]] result<void> restore(typename Cache::sequence& sequence) {
        if (states_.known(sequence))
            return {};
        const std::vector<token_id> all(sequence.tokens().begin(), sequence.tokens().end());
        sequence.truncate(all.size() - 1);
        const auto some = std::span(all).subspan(sequence.size());
        auto ran = extend(sequence, some, logits_mode::none);
        return ran ? result<void>() : result<void>(ran.error());
    }

    // Rolls back the leases that a call did not commit, however it ends.
    struct lease_guard {
        std::vector<lease>& leases;
        ~lease_guard() { leases.clear(); }
    };

    // A lease for each of the batch. Errors: some have none.
    [[nodiscard]] result<void> reserve(std::span<const batch_entry<Cache>> batch) {
        leases_.reserve(batch.size()); // so that pointers to them stay valid
        for (const auto& one : batch) {
            if (one.open != nullptr)
                continue;
            if (auto valid = check(one.sequence->size(), one.tokens); !valid)
                return valid;
            auto reserved = cache_.reserve(*one.sequence, one.tokens.size(), {.max_batch_tokens = max_batch_tokens_});
            if (!reserved)
                return reserved.error();
            leases_.push_back(std::move(*reserved));
        }
        return {};
    }

    // Runs the rows of the leases and commits them. Errors: of attention that may fail.
    [[nodiscard]] result<void> compute(std::span<const batch_entry<Cache>> batch, matrix& logits) {
        if (auto ran = run(batch, logits); !ran)
            return ran;
        std::size_t own = 0;
        for (const auto& one : batch)
            if (one.open == nullptr)
                leases_[own++].commit(one.tokens); // commit cannot fail: the whole batch is committed, or nothing
        return {};
    }

    // All rows of the batch in passes of at most max_batch_tokens_ rows, in order. Errors: of attention that may fail.
    [[nodiscard]] result<void> run(std::span<const batch_entry<Cache>> batch, matrix& logits) {
        std::size_t wanted = 0;
        for (const auto& one : batch)
            wanted += batch_slice<lease>{nullptr, 0, one.tokens, one.wanted}.wanted_rows();
        logits.resize(static_cast<Eigen::Index>(wanted), static_cast<Eigen::Index>(model_.vocabulary()));
        float* to = logits.data();
        parts_.clear();
        std::size_t rows = 0, own = 0;
        states_.clear();
        for (const auto& one : batch) {
            const lease* const of = one.open != nullptr ? one.open : &leases_[own++];
            for (std::size_t row = 0; row < one.tokens.size();) {
                const std::size_t n = std::min(one.tokens.size() - row, max_batch_tokens_ - rows);
                const bool last = row + n == one.tokens.size();
                const logits_mode which = one.wanted == logits_mode::last && !last ? logits_mode::none : one.wanted;
                const auto some = one.rows.empty() ? one.rows : one.rows.subspan(row, n);
                parts_.push_back({of, some.empty() ? row : some.front(), one.tokens.subspan(row, n), which, some});
                parts_.back().states = states_.of(*of, row, n, one.snapshots);
                row += n;
                rows += n;
                if (rows == max_batch_tokens_) {
                    to = forward(to);
                    rows = 0;
                    if (auto well = status(); !well)
                        return well;
                }
            }
        }
        if (!parts_.empty())
            forward(to);
        return status();
    }

    [[nodiscard]] result<void> status() const {
        if constexpr (requires { pass_.status(); })
            return pass_.status();
        else
            return {};
    }

    // Runs the parts and forgets them. Returns where the logits end.
    float* forward(float* logits) {
        pass_.begin(parts_);
        for (const layer_id layer : model_.layers())
            pass_.forward(layer); // codec writes, attention reads the pages
        std::size_t numbers = 0;
        for (const auto& part : parts_)
            numbers += part.wanted_rows() * model_.vocabulary();
        pass_.logits({logits, numbers});
        parts_.clear();
        return logits + numbers;
    }

    Cache& cache_;
    const Model& model_;
    std::size_t max_batch_tokens_;
    thread_pool& threads_;
    layer_states<Cache, Model> states_;
    decltype(std::declval<const Model&>().template make_forward_pass<lease>(std::declval<thread_pool&>())) pass_;
    std::vector<lease> leases_; // of the call that runs
    std::vector<batch_slice<lease>> parts_;
};

}} // namespace kvcache
