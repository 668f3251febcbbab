// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/load.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../support/machine.hpp"
#include "../support/rows.hpp"
#include "arms.hpp"
#include "questions.hpp"

namespace bench {

/// A quality benchmark: questions about documents that are each prefilled alone, in a separate document order for every
/// question.
class chunk_quality {
public:
    /// Loads the model. `make` makes the questions, given the tokenizer. `stop` is the text of the token that ends an
    /// answer, or empty.
    template <class Make>
    chunk_quality(const std::filesystem::path& directory, std::size_t threads, const std::string& stop, Make make)
        : model_(must(kvcache::load_model(directory)).model),
          words_(must(kvcache::tokenizer::open(directory))),
          threads_(threads),
          asked_(make(words_)) {
        if (!stop.empty())
            stop_ = must(words_.encode(stop, {.add_special_tokens = false})).at(0);
        ask_all();
    }

    [[nodiscard]] std::size_t questions() const { return asked_.size(); }
    [[nodiscard]] double full_accuracy() const { return full_right_ / static_cast<double>(asked_.size()); }

    /// Measures a strategy's effect on the answers. The first strategy's KL becomes `kl_none`; the strategy named
    /// "random" is the one against which later strategies are tested.
    template <class Policy, class Codec = kvcache::codec::f32>
    void run(const std::string& name, Policy policy, bool bottom_right, std::vector<chunk_row>& to, Codec codec = {},
             const std::string& codec_name = "f32") {
        chunk_row row{.part = "quality",
                      .strategy = name,
                      .codec = codec_name,
                      .full_accuracy = full_accuracy(),
                      .questions = asked_.size()};
        std::vector<double> divergence;
        double right = 0.0, agree = 0.0, said = 0.0, again = 0.0, found = 0.0;
        samples warm, full;
        for (const question& one : asked_) {
            arm<Policy, Codec> here(
                model_, threads_, policy, 8192, 8, 16,
                {.split = {.size = 0}, .store = false, .max_batch_tokens = 2048, .bottom_right = bottom_right}, codec);
            for (const tokens& document : one.documents)
                static_cast<void>(must(here.runner.warm(document, {})));
            const bool timed = divergence.size() < timed_questions;
            if (timed) {
                const stopwatch cold;
                static_cast<void>(must(here.runner.prefill(one.prompt_elsewhere, kvcache::reuse_mode::baseline)));
                full.add(1e3 * cold.seconds());
            }
            const stopwatch watch;
            auto filled = must(here.runner.prefill(one.prompt, kvcache::reuse_mode::chunks));
            if (timed)
                warm.add(1e3 * watch.seconds());
            again += static_cast<double>(filled.counts.recomputed);
            found += static_cast<double>(filled.counts.recomputed + filled.counts.approximate);
            row.forward_tokens += static_cast<double>(filled.counts.layer_rows) /
                                  static_cast<double>(model_.layers().size() * asked_.size());
            row.full_forward_tokens += static_cast<double>(filled.counts.prompt) / static_cast<double>(asked_.size());
            row.shared_mib +=
                here.mib(filled.counts.exact + filled.counts.approximate) / static_cast<double>(asked_.size());
            auto fork = filled.sequence.fork(filled.sequence.size());
            const auto logits = answer_logits(here.runner.exact(), fork, filled.logits, one.exact_answer);
            double sum = 0.0;
            for (Eigen::Index i = 0; i < logits.rows(); ++i) {
                sum += kvcache::divergence(kvcache::row_of(one.exact_logits, static_cast<std::size_t>(i)),
                                           kvcache::row_of(logits, static_cast<std::size_t>(i)));
                agree += best(one.exact_logits.row(i)) == best(logits.row(i));
            }
            said += static_cast<double>(logits.rows());
            divergence.push_back(sum / static_cast<double>(logits.rows()));
            right += one.right(words_.decode(greedy(here.runner.exact(), filled.sequence, filled.logits), {}));
        }
        const auto n = static_cast<double>(asked_.size());
        row.ttft_ms = warm.median();
        row.full_ttft_ms = full.median();
        row.recomputed_share = again / found;
        row.kl = mean(divergence);
        row.argmax_agreement = agree / said;
        row.accuracy = right / n;
        if (to.empty()) {
            none_kl_ = row.kl;
            none_accuracy_ = row.accuracy;
        }
        row.kl_none = none_kl_;
        row.none_accuracy = none_accuracy_;
        if (name == "random")
            random_ = divergence;
        if (!random_.empty())
            row.p_random = paired(divergence, random_);
        by_name_.emplace_back(name, divergence);
        to.push_back(row);
    }

    /// The p-value of the KL difference between two strategies.
    [[nodiscard]] double p_between(const std::string& a, const std::string& b) const { return paired(of(a), of(b)); }

private:
    static constexpr std::size_t timed_questions = 20; // the first of them, compared with a prefill of everything

    using plain_cache = kvcache::cache<>;

    // Computes the exact answers, and the logits after every token of them.
    void ask_all() {
        auto store = kvcache::make_cache({.shape = model_.shape(16), .limit = {.bytes = std::size_t{1} << 28}});
        kvcache::pipeline<plain_cache, kvcache::transformer> runner(store, model_, threads_);
        for (question& one : asked_) {
            auto filled = must(runner.prefill(one.prompt));
            auto fork = filled.sequence.fork(filled.sequence.size());
            one.exact_answer = greedy(runner, fork, filled.logits);
            one.exact_logits = answer_logits(runner, filled.sequence, filled.logits, one.exact_answer);
            if (one.answer.empty())
                one.answer = words_.decode(one.exact_answer, {});
            full_right_ += one.right(words_.decode(one.exact_answer, {}));
        }
    }

    template <class Pipeline, class Sequence>
    [[nodiscard]] kvcache::matrix answer_logits(Pipeline& runner, Sequence& behind, const kvcache::matrix& first,
                                                const tokens& answer) {
        kvcache::matrix all(static_cast<Eigen::Index>(answer.size() + 1), first.cols());
        all.row(0) = first.row(0);
        if (!answer.empty())
            all.bottomRows(static_cast<Eigen::Index>(answer.size())) =
                must(runner.extend(behind, answer, kvcache::logits_mode::all));
        return all;
    }

    template <class Pipeline, class Sequence>
    [[nodiscard]] tokens greedy(Pipeline& runner, Sequence& behind, kvcache::matrix logits) {
        tokens said;
        while (said.size() < 64) {
            const auto token = kvcache::token_id{static_cast<std::int32_t>(best(logits.row(0)))};
            if (token == stop_)
                break;
            said.push_back(token);
            logits = must(runner.extend(behind, {&said.back(), 1}));
        }
        return said;
    }

    template <class Row>
    [[nodiscard]] static Eigen::Index best(const Row& row) {
        Eigen::Index at = 0;
        row.maxCoeff(&at);
        return at;
    }

    [[nodiscard]] static double mean(const std::vector<double>& of) {
        double sum = 0.0;
        for (const double x : of)
            sum += x;
        return sum / static_cast<double>(of.size());
    }

    // A two-sided paired randomization test (Fisher): 20000 random sign flips of the differences.
    [[nodiscard]] static double paired(const std::vector<double>& a, const std::vector<double>& b) {
        std::vector<double> off(a.size());
        for (std::size_t i = 0; i < a.size(); ++i)
            off[i] = a[i] - b[i];
        const double seen = std::abs(mean(off));
        std::mt19937 dice(1);
        std::size_t as_large = 0;
        constexpr std::size_t draws = 20000;
        for (std::size_t i = 0; i < draws; ++i) {
            double sum = 0.0;
            for (const double x : off)
                sum += (dice() & 1u) != 0 ? x : -x;
            as_large += std::abs(sum / static_cast<double>(off.size())) >= seen;
        }
        return static_cast<double>(as_large + 1) / static_cast<double>(draws + 1);
    }

    [[nodiscard]] const std::vector<double>& of(const std::string& name) const {
        return std::ranges::find(by_name_, name, &std::pair<std::string, std::vector<double>>::first)->second;
    }

    kvcache::transformer model_;
    kvcache::tokenizer words_;
    kvcache::thread_pool threads_;
    std::optional<kvcache::token_id> stop_;
    std::vector<question> asked_;
    double full_right_ = 0.0, none_kl_ = 0.0, none_accuracy_ = 0.0;
    std::vector<double> random_;
    std::vector<std::pair<std::string, std::vector<double>>> by_name_;
};

} // namespace bench
