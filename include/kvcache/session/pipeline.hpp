// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/kernel/team.hpp>
#include <kvcache/model/forward_pass.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache {

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
/// reused, however the prompt is split, whoever shares the batch, on any number of threads.
template <class Cache, class Model>
class pipeline {
public:
    using lease = typename Cache::lease;

    /// At most `split` rows run in one forward pass; the scratch memory grows with it, the bits do not change.
    pipeline(Cache& cache, const Model& model, team& threads, std::size_t split = 256)
        : cache_(cache), model_(model), threads_(threads), split_(split) {
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

    /// Runs tokens behind a sequence. Errors: as feed; the sequence is as before.
    [[nodiscard]] result<matrix> extend(typename Cache::sequence& sequence, std::span<const token_id> tokens,
                                        logits_of wanted = logits_of::last) {
        const extension<Cache> one{&sequence, tokens, wanted};
        return extend(std::span(&one, 1));
    }

    /// Runs tokens behind several different sequences in shared forward passes. (rows wanted, vocabulary), in order.
    /// Errors: as feed; every sequence is as before.
    [[nodiscard]] result<matrix> extend(std::span<const extension<Cache>> batch) {
        std::vector<lease> leases; // storage: pages; eviction says which leave
        for (const auto& one : batch) {
            if (auto valid = check(one.sequence->size(), one.tokens); !valid)
                return valid.error();
            auto reserved = cache_.reserve(*one.sequence, one.tokens.size());
            if (!reserved)
                return reserved.error();
            leases.push_back(std::move(*reserved));
        }
        matrix logits = run(batch, leases);
        for (std::size_t i = 0; i < batch.size(); ++i)
            leases[i].commit(batch[i].tokens);
        return logits;
    }

    /// Positions the model can tell apart.
    [[nodiscard]] std::size_t max_positions() const noexcept { return model_.max_positions(); }

private:
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

    // All rows of the batch in passes of at most split_ rows, in order.
    [[nodiscard]] matrix run(std::span<const extension<Cache>> batch, const std::vector<lease>& leases) {
        std::vector<matrix> pieces;
        std::vector<batch_part<lease>> parts;
        std::size_t rows = 0;
        for (std::size_t i = 0; i < batch.size(); ++i)
            for (std::size_t row = 0; row < batch[i].tokens.size();) {
                const std::size_t n = std::min(batch[i].tokens.size() - row, split_ - rows);
                const bool last = row + n == batch[i].tokens.size();
                const logits_of wanted =
                    batch[i].wanted == logits_of::last && !last ? logits_of::none : batch[i].wanted;
                parts.push_back({&leases[i], row, batch[i].tokens.subspan(row, n), wanted});
                row += n;
                rows += n;
                if (rows == split_) {
                    pieces.push_back(forward(parts));
                    parts.clear();
                    rows = 0;
                }
            }
        if (!parts.empty())
            pieces.push_back(forward(parts));
        return stack(pieces);
    }

    [[nodiscard]] matrix forward(std::span<const batch_part<lease>> parts) {
        auto pass = model_.begin(parts, threads_);
        for (const layer_id layer : model_.layers())
            pass.forward(layer); // codec writes, attention reads the pages
        return pass.logits();
    }

    [[nodiscard]] static matrix stack(std::vector<matrix>& pieces) {
        if (pieces.size() == 1)
            return std::move(pieces.front());
        Eigen::Index rows = 0;
        for (const matrix& piece : pieces)
            rows += piece.rows();
        matrix whole(rows, pieces.empty() ? 0 : pieces.front().cols());
        rows = 0;
        for (const matrix& piece : pieces) {
            whole.middleRows(rows, piece.rows()) = piece;
            rows += piece.rows();
        }
        return whole;
    }

    Cache& cache_;
    const Model& model_;
    team& threads_;
    std::size_t split_;
};

} // namespace kvcache
