// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/kernel/team.hpp>
#include <kvcache/model/batch_part.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// A prompt that has run: its sequence, to be continued, and the logits that were asked for.
template <class Cache>
struct fed {
    typename Cache::sequence sequence;
    matrix logits;             ///< (rows wanted, vocabulary)
    std::size_t reused = 0;    ///< Tokens whose keys and values were known.
    std::size_t prefilled = 0; ///< Tokens that ran.
    std::string explanation;   ///< Why no more was known.
};

/// Tokens to run behind a sequence.
template <class Cache>
struct extension {
    typename Cache::sequence* sequence = nullptr;
    std::span<const token_id> tokens = {};
    logits_of wanted = logits_of::last;
};

/// Tokens in, logits out: match, plan, reserve, forward, commit. The bits of a row's logits are the same whatever was
/// reused, however the prompt is split, whoever shares the batch, on any number of threads. One call at a time.
template <class Cache, class Model>
class pipeline {
public:
    using lease = typename Cache::lease;

    /// At most `split` rows run in one forward pass; the scratch memory grows with it, the bits do not change.
    pipeline(Cache& cache, const Model& model, team& threads, std::size_t split = 256)
        : cache_(cache), model_(model), split_(split), pass_(model.template passes<lease>(threads)) {
        expects(split > 0, "a forward pass has at least one row");
    }

    /// Runs a prompt on top of what the cache knows of it.
    /// Errors: out_of_range, for no token, one outside the vocabulary, or more than the model has positions;
    /// out_of_memory. Nothing has changed then.
    [[nodiscard]] result<fed<Cache>> feed(std::span<const token_id> tokens, logits_of wanted = logits_of::last) {
        if (auto valid = check(0, tokens); !valid)
            return valid.error();
        auto found = cache_.match(tokens);     // index: the longest known run, and why it ended
        const rerun plan = cache_.plan(found); // recompute: which tokens still run
        std::string explanation = found.explain();
        auto sequence = cache_.open(std::move(found), plan); // the known pages, shared
        auto logits = extend(sequence, tokens.subspan(plan.first), wanted);
        if (!logits)
            return logits.error();
        return fed<Cache>{std::move(sequence), std::move(*logits), plan.first, plan.count, std::move(explanation)};
    }

    /// Runs tokens behind a sequence. Errors: as feed, and io, where attention runs on a device; the sequence is as
    /// before.
    [[nodiscard]] result<matrix> extend(typename Cache::sequence& sequence, std::span<const token_id> tokens,
                                        logits_of wanted = logits_of::last) {
        matrix logits;
        if (auto ran = extend(sequence, tokens, wanted, logits); !ran)
            return ran.error();
        return logits;
    }

    /// As above, into `logits`, which is given the shape: where it has it already, and the sequence has room, a token
    /// allocates nothing.
    [[nodiscard]] result<void> extend(typename Cache::sequence& sequence, std::span<const token_id> tokens,
                                      logits_of wanted, matrix& logits) {
        const extension<Cache> one{&sequence, tokens, wanted};
        return extend(std::span(&one, 1), logits);
    }

    /// Runs tokens behind several different sequences in shared forward passes. (rows wanted, vocabulary), in order.
    /// Tokens may be those of the sequences themselves. Errors, and what is thrown: as feed; every sequence is as
    /// before.
    [[nodiscard]] result<matrix> extend(std::span<const extension<Cache>> batch) {
        matrix logits;
        if (auto ran = extend(batch, logits); !ran)
            return ran.error();
        return logits;
    }

    /// As above, into `logits`.
    [[nodiscard]] result<void> extend(std::span<const extension<Cache>> batch, matrix& logits) {
        const ending at_the_end{leases_};
        if (auto reserved = reserve(batch); !reserved) // storage: pages; eviction says which leave
            return reserved;
        if (auto ran = run(batch, logits); !ran)
            return ran;
        for (std::size_t i = 0; i < batch.size(); ++i)
            leases_[i].commit(batch[i].tokens); // none fails: all of the batch is committed, or nothing was
        return {};
    }

    /// Whether tokens can run behind `before` others. Errors: out_of_range.
    [[nodiscard]] result<void> check(std::size_t before, std::span<const token_id> tokens) const {
        if (tokens.empty())
            return error{error_code::out_of_range, "tokens", "there is no token to run"};
        if (tokens.size() > max_positions() - std::min(before, max_positions()))
            return error{error_code::out_of_range, "max_positions",
                         std::to_string(before + tokens.size()) + " tokens are past the model's " +
                             std::to_string(max_positions()) + " positions"};
        for (const token_id token : tokens)
            if (index_of(token) < 0 || static_cast<std::size_t>(index_of(token)) >= model_.vocabulary())
                return error{error_code::out_of_range, "tokens",
                             "token " + std::to_string(index_of(token)) + " is outside the vocabulary of " +
                                 std::to_string(model_.vocabulary())};
        return {};
    }

    /// Positions the model can tell apart.
    [[nodiscard]] std::size_t max_positions() const noexcept { return model_.max_positions(); }

private:
    // Takes back, however a call ends, the leases that were not committed.
    struct ending {
        std::vector<lease>& leases;
        ~ending() { leases.clear(); }
    };

    // A lease for each of the batch. Errors: some have none.
    [[nodiscard]] result<void> reserve(std::span<const extension<Cache>> batch) {
        for (const auto& one : batch) {
            if (auto valid = check(one.sequence->size(), one.tokens); !valid)
                return valid;
            auto reserved = cache_.reserve(*one.sequence, one.tokens.size(), split_);
            if (!reserved)
                return reserved.error();
            leases_.push_back(std::move(*reserved));
        }
        return {};
    }

    // All rows of the batch in passes of at most split_ rows, in order. Errors: of attention that may fail.
    [[nodiscard]] result<void> run(std::span<const extension<Cache>> batch, matrix& logits) {
        std::size_t wanted = 0;
        for (const auto& one : batch)
            wanted += batch_part<lease>{nullptr, 0, one.tokens, one.wanted}.wanted_rows();
        logits.resize(static_cast<Eigen::Index>(wanted), static_cast<Eigen::Index>(model_.vocabulary()));
        float* to = logits.data();
        parts_.clear();
        std::size_t rows = 0;
        for (std::size_t i = 0; i < batch.size(); ++i)
            for (std::size_t row = 0; row < batch[i].tokens.size();) {
                const std::size_t n = std::min(batch[i].tokens.size() - row, split_ - rows);
                const bool last = row + n == batch[i].tokens.size();
                const logits_of which = batch[i].wanted == logits_of::last && !last ? logits_of::none : batch[i].wanted;
                parts_.push_back({&leases_[i], row, batch[i].tokens.subspan(row, n), which});
                row += n;
                rows += n;
                if (rows == split_) {
                    to = forward(to);
                    rows = 0;
                    if (auto well = status(); !well)
                        return well;
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
    std::size_t split_;
    decltype(std::declval<const Model&>().template passes<lease>(std::declval<team&>())) pass_;
    std::vector<lease> leases_; // of the call that runs
    std::vector<batch_part<lease>> parts_;
};

} // namespace kvcache
