// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/decode_state.hpp>
#include <kvcache/session/log_probabilities.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Width of a beam search, and the ranking of its answers.
struct beam_options {
    std::size_t beams = 4;       ///< Unfinished answers that are extended in each step.
    std::size_t best = 1;        ///< Number of answers to return.
    double length_penalty = 1.0; ///< The score is the log-probability divided by length^length_penalty.
};

/// An answer found by a beam search.
struct beam_answer {
    std::vector<token_id> ids = {};
    double log_probability = 0.0; ///< Sum over all tokens and the stop token, from the unmodified logits.
    double score = 0.0;
    bool stopped = false; ///< Ended by a stop token, not by the length limit.
};

/// The best answers found, best first, and the token counts of the prompt.
struct beam_answers {
    std::vector<beam_answer> answers = {}; ///< At most beam_options::best answers.
    std::size_t reused = 0;                ///< Tokens of the prompt that came from the cache.
    std::size_t prefilled = 0;             ///< Tokens of the prompt that were computed.
};

namespace detail {

// Unfinished answers of equal length. Each has its own sequence, which shares the pages of the common prefix.
template <class Cache, class Model>
class beam_search {
public:
    beam_search(pipeline<Cache, Model>& pipeline, std::span<const token_id> prompt, const stop_criteria& stop,
                const beam_options& how)
        : pipeline_(pipeline),
          stop_(stop),
          how_(how),
          prompt_(prompt.size()),
          most_(std::min(stop.max_tokens, pipeline.max_positions() - prompt.size() + 1)) {}

    [[nodiscard]] result<std::vector<beam_answer>> run(std::span<const token_id> prompt,
                                                       typename Cache::sequence sequence, matrix logits) {
        beams_.push_back({{prompt.begin(), prompt.end()}, 0.0, std::move(sequence)});
        for (std::size_t length = 0; length < most_; ++length) {
            auto chosen = choose(logits);
            if (!chosen)
                return chosen.error();
            if (chosen->empty() || hopeless(chosen->front().sum, length + 1)) {
                beams_.clear();
                break;
            }
            follow(*chosen);
            if (length + 1 == most_)
                break; // the last tokens are returned but never run
            std::vector<batch_entry<Cache>> batch;
            for (beam& each : beams_)
                batch.push_back(
                    {&each.sequence, std::span(each.tokens).subspan(each.sequence.size()), logits_mode::last});
            if (auto ran = pipeline_.extend(batch, logits); !ran)
                return ran.error();
        }
        for (const beam& each : beams_)
            keep({each.tokens.begin() + static_cast<std::ptrdiff_t>(prompt_), each.tokens.end()}, each.sum, false);
        return std::move(found_);
    }

private:
    struct beam {
        std::vector<token_id> tokens; // prompt, then the answer so far
        double sum;
        typename Cache::sequence sequence;
    };
    struct step {
        std::size_t from; // index of the beam
        token_id token;
        double sum;
    };

    // Selects the most likely steps, in descending order. Ties: the earlier beam first, then the larger logit, then
    // the lower token id. A stop token that ranks before the last selected step completes its answer.
    [[nodiscard]] result<std::vector<step>> choose(const matrix& logits) {
        std::vector<step> all, made;
        for (std::size_t i = 0; i < beams_.size(); ++i) {
            const auto row = row_of(logits, i);
            if (auto finite = detail::check_finite(row); !finite)
                return finite.error();
            const log_probabilities scores(row);
            for (const token_score& each : scores.top(how_.beams + stop_.stop_tokens.size()))
                all.push_back({i, each.token, beams_[i].sum + scores.precise(each.token)});
        }
        ranges::stable_sort(all, [](const step& a, const step& b) { return a.sum > b.sum; });
        for (const step& each : all) {
            if (made.size() == how_.beams)
                break;
            if (ranges::find(stop_.stop_tokens, each.token) == stop_.stop_tokens.end()) {
                made.push_back(each);
                continue;
            }
            std::vector<token_id> ids(beams_[each.from].tokens.begin() + static_cast<std::ptrdiff_t>(prompt_),
                                      beams_[each.from].tokens.end());
            ids.push_back(each.token);
            keep(std::move(ids), each.sum, true);
        }
        return made;
    }

    // The last step of a beam takes over its sequence; the other steps fork it and share its pages.
    void follow(const std::vector<step>& steps) {
        std::vector<beam> next;
        for (std::size_t i = 0; i < steps.size(); ++i) {
            beam& from = beams_[steps[i].from];
            const bool last = std::none_of(steps.begin() + static_cast<std::ptrdiff_t>(i) + 1, steps.end(),
                                           [&](const step& later) { return later.from == steps[i].from; });
            next.push_back({from.tokens, steps[i].sum,
                            last ? std::move(from.sequence) : from.sequence.fork(from.sequence.size())});
            next.back().tokens.push_back(steps[i].token);
        }
        beams_ = std::move(next);
    }

    void keep(std::vector<token_id> ids, double sum, bool stopped) {
        const double score = score_of(sum, ids.size());
        const auto place = ranges::find_if(found_, [&](const beam_answer& other) { return other.score < score; });
        if (place == found_.end() && found_.size() == how_.best)
            return;
        found_.insert(place, {std::move(ids), sum, score, stopped});
        found_.resize(std::min(found_.size(), how_.best));
    }

    // Returns whether no continuation of an answer of this length can enter the list of best answers.
    [[nodiscard]] bool hopeless(double sum, std::size_t length) const {
        return found_.size() == how_.best && length < most_ &&
               score_of(sum, how_.length_penalty >= 0.0 ? most_ : length + 1) <= found_.back().score;
    }

    [[nodiscard]] double score_of(double sum, std::size_t length) const {
        return length == 0 ? sum : sum / std::pow(static_cast<double>(length), how_.length_penalty);
    }

    pipeline<Cache, Model>& pipeline_;
    const stop_criteria& stop_;
    const beam_options& how_;
    std::size_t prompt_;
    std::size_t most_;
    std::vector<beam> beams_;
    std::vector<beam_answer> found_;
};

} // namespace detail

/// Runs a prompt on top of its cached prefix and searches its most likely answers. In every step the `beams` most
/// likely one-token extensions are kept and computed in one forward pass. The search ends when no extension can beat
/// the answers found. Log-probabilities are summed in double precision. Errors: those of pipeline::prefill; after an
/// error no page stays in use. Requires: beams > 0, best > 0. Cost: `beams` rows per token; beams share the pages of
/// their common prefix.
template <class Cache, class Model>
[[nodiscard]] result<beam_answers> search_beams(pipeline<Cache, Model>& pipeline, std::span<const token_id> prompt,
                                                const stop_criteria& stop, const beam_options& how) {
    expects(how.beams > 0 && how.best > 0, "a search follows at least one answer, and gives one");
    auto begun = pipeline.prefill(prompt);
    if (!begun)
        return begun.error();
    beam_answers made{.reused = begun->reused, .prefilled = begun->prefilled};
    auto found = detail::beam_search<Cache, Model>(pipeline, prompt, stop, how)
                     .run(prompt, std::move(begun->sequence), std::move(begun->logits));
    if (!found)
        return found.error();
    made.answers = std::move(*found);
    return made;
}

}} // namespace kvcache
