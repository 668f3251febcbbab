// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/f32.hpp>
#include <kvcache/kvcache.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "codec_flag.hpp"
#include "kept_layers.hpp"

namespace support {

/// The effect of a codec on a model's predictions of a text.
struct quality {
    double perplexity = 0.0;
    double divergence = 0.0; ///< KL divergence from the predictions with float32 pages, in nats per token.
    double agreement = 0.0;  ///< Share of positions with the same most likely token.
};

/// The natural logarithms of the softmax probabilities of a row. (vocabulary)
[[nodiscard]] inline Eigen::ArrayXd log_probabilities(const kvcache::matrix& logits, Eigen::Index row) {
    const Eigen::ArrayXd x = logits.row(row).cast<double>().array();
    return x - x.maxCoeff() - std::log((x - x.maxCoeff()).exp().sum());
}

/// Accumulates quality over rows of logits: `exact` with float32 pages, `encoded` with a codec's pages.
class quality_sum {
public:
    /// Adds a row for each of `next`, the token that follows it. Requires: as many rows of both, or more.
    void add(const kvcache::matrix& exact, const kvcache::matrix& encoded, std::span<const kvcache::token_id> next) {
        for (std::size_t i = 0; i < next.size(); ++i) {
            const auto row = static_cast<Eigen::Index>(i);
            const auto p = log_probabilities(exact, row), q = log_probabilities(encoded, row);
            Eigen::Index first = 0, second = 0;
            p.maxCoeff(&first), q.maxCoeff(&second);
            surprise_ -= q[kvcache::index_of(next[i])];
            divergence_ += (p.exp() * (p - q)).sum();
            agree_ += first == second;
            ++rows_;
        }
    }

    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] quality mean() const {
        const double n = static_cast<double>(std::max<std::size_t>(rows_, 1));
        return {std::exp(surprise_ / n), divergence_ / n, static_cast<double>(agree_) / n};
    }

private:
    double surprise_ = 0.0, divergence_ = 0.0;
    std::size_t agree_ = 0, rows_ = 0;
};

/// A window of a text: tokens [first, last), of which those from `scored` on are predicted.
struct text_window {
    std::size_t first = 0, last = 0, scored = 0;
};

/// Splits a text of `tokens` into windows of `size` tokens, each `stride` after the one before. Each token is predicted
/// once, in the first window that holds it: with a stride below the size from at least size - stride tokens before it.
/// The first token of a text has no prediction, nor, with a stride of a whole window, that of each window. Requires:
/// 0 < stride <= size.
[[nodiscard]] inline std::vector<text_window> windows_of(std::size_t tokens, std::size_t size, std::size_t stride) {
    std::vector<text_window> made;
    std::size_t done = 0; // tokens of the windows so far
    for (std::size_t first = 0; done < tokens; first += stride) {
        const std::size_t last = std::min(first + size, tokens);
        if (const std::size_t scored = std::max(done, first + 1); scored < last)
            made.push_back({first, last, scored});
        done = last;
    }
    return made;
}

/// A cache for one window, of the model's layer groups, and its pipeline.
template <class Codec>
class window_reader {
public:
    using cache = cache_of<grouped_layers<Codec>>;

    window_reader(const kvcache::transformer& model, kvcache::thread_pool& threads, const grouped_layers<Codec>& layers,
                  std::size_t window, std::size_t max_batch_tokens)
        : window_reader(model, threads, layers, model.shape(layers.layout.tokens), window, max_batch_tokens) {}

    /// Forgets the window before.
    void begin() {
        sequence_ = store_.open();
        store_.clear();
    }
    /// Runs the next tokens of the window. `logits`: (tokens, vocabulary). Errors: those of pipeline::extend.
    [[nodiscard]] kvcache::result<void> run(std::span<const kvcache::token_id> tokens, kvcache::matrix& logits) {
        const kvcache::batch_entry<cache> one{&sequence_, tokens, kvcache::logits_mode::all};
        return pipeline_.extend(std::span(&one, 1), logits);
    }

private:
    window_reader(const kvcache::transformer& model, kvcache::thread_pool& threads, const grouped_layers<Codec>& layers,
                  kvcache::page_shape shape, std::size_t window, std::size_t max_batch_tokens)
        : store_(make_cache_of(layers,
                               {.shape = shape,
                                .limit = {.bytes = (window / shape.tokens + 2) * layers.codec.open(shape).page_bytes() +
                                                   residual_bytes(layers.codec, shape, max_batch_tokens) +
                                                   layers.other_bytes(window + max_batch_tokens)}})),
          pipeline_(store_, model, threads, max_batch_tokens),
          sequence_(store_.open()) {}

    cache store_;
    kvcache::pipeline<cache, kvcache::transformer> pipeline_;
    typename cache::sequence sequence_;
};

/// The price of a codec on a text.
struct perplexity_report {
    quality with;       ///< With the codec's pages.
    double exact = 0.0; ///< Perplexity with float32 pages.
    std::size_t windows = 0;
    std::size_t predicted = 0; ///< Predicted tokens.
};

/// How a text is read.
struct perplexity_options {
    std::size_t window = 2048; ///< Tokens of a window, which begins with an empty cache.
    std::size_t stride = 2048; ///< Tokens from the start of one window to that of the next.
    std::uint32_t page = 64;
    std::size_t max_batch_tokens = 256; ///< Rows of logits that are held at a time.
};

/// Computes the perplexity of a text with pages of a codec, and with float32 pages. `on_progress(done, of)` is called
/// with the windows that are done. Errors: those of pipeline::extend; out_of_range for a text of fewer than two tokens.
template <class Codec, class OnProgress>
[[nodiscard]] kvcache::result<perplexity_report>
perplexity_of(const kvcache::transformer& model, kvcache::thread_pool& threads, const Codec& codec,
              std::span<const kvcache::token_id> text, const perplexity_options& with, OnProgress on_progress) {
    constexpr bool lossless = std::is_same_v<Codec, kvcache::codec::f32>;
    const auto windows = windows_of(text.size(), with.window, with.stride);
    if (windows.empty())
        return kvcache::error{kvcache::error_code::out_of_range, "text",
                              "a text of fewer than two tokens predicts none"};
    const std::size_t longest = std::min(with.window, text.size());
    const kvcache::cache_layout layout = model.layout(with.page);
    window_reader exact(model, threads, grouped_layers<kvcache::codec::f32>{{}, layout}, longest,
                        with.max_batch_tokens);
    window_reader coded(model, threads, grouped_layers<Codec>{codec, layout}, longest, with.max_batch_tokens);
    quality_sum sum, base;
    kvcache::matrix rows, coded_rows;
    for (std::size_t i = 0; i < windows.size(); ++i) {
        on_progress(i, windows.size());
        const text_window& at = windows[i];
        exact.begin(), coded.begin();
        for (std::size_t first = at.first; first < at.last; first += with.max_batch_tokens) {
            const std::size_t last = std::min(first + with.max_batch_tokens, at.last);
            const auto tokens = text.subspan(first, last - first);
            if (auto ran = exact.run(tokens, rows); !ran)
                return ran.error();
            if constexpr (!lossless)
                if (auto ran = coded.run(tokens, coded_rows); !ran)
                    return ran.error();
            // Row r predicts token r + 1: the rows of tokens from `scored` - 1 to the last but one.
            const std::size_t from = std::max(first, at.scored - 1), to = std::min(last, at.last - 1);
            if (from >= to)
                continue;
            const auto next = text.subspan(from + 1, to - from);
            const auto skipped = static_cast<Eigen::Index>(from - first);
            const kvcache::matrix kept = rows.bottomRows(rows.rows() - skipped);
            base.add(kept, kept, next);
            if constexpr (lossless)
                continue;
            sum.add(kept, coded_rows.bottomRows(coded_rows.rows() - skipped), next);
        }
    }
    on_progress(windows.size(), windows.size());
    const quality plain = base.mean();
    return perplexity_report{lossless ? plain : sum.mean(), plain.perplexity, windows.size(), base.rows()};
}

} // namespace support
