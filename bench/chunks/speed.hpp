// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/testing/random_weights.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "../support/machine.hpp"
#include "../support/rows.hpp"
#include "arms.hpp"
#include "presets.hpp"

namespace bench {

/// A speed benchmark: the time to the first token of documents that are each prefilled alone, in an unseen order and
/// followed by a new question.
class chunk_speed {
public:
    chunk_speed(std::size_t threads, std::size_t rounds, std::size_t chunks, std::size_t size)
        : model_(kvcache::make_random_model({.hidden_size = 512,
                                             .intermediate_size = 1408,
                                             .layers = 16,
                                             .heads = 8,
                                             .kv_heads = 2,
                                             .head_dim = 64,
                                             .vocabulary = 4096,
                                             .max_positions = 16384,
                                             .rope = {},
                                             .tied_head = true,
                                             .bos = {},
                                             .eos = {}},
                                            1)),
          threads_(threads),
          rounds_(rounds),
          size_(size) {
        for (std::size_t i = 0; i < chunks; ++i)
            documents_.push_back(fresh(size));
    }

    template <class Policy>
    void run(const std::string& name, Policy policy, std::vector<chunk_row>& to) {
        run("speed", name, std::move(policy), {.size = size_}, {}, kvcache::reuse_mode::chunks, to);
    }

    /// Measures a published system's preset, with the KL divergence of the next-token distribution from that of a full
    /// prefill.
    template <class Recompute>
    void run(const preset<Recompute>& as, std::vector<chunk_row>& to) {
        run("presets", std::string(as.name), as.recompute, as.split, as.warm, as.mode, to);
    }

    /// Measures the cost of a prompt without hits, with and without the lookup, interleaved; the row has the fastest
    /// time of each.
    void zero_reuse(std::size_t length, std::size_t times, std::vector<chunk_row>& to) {
        arm<kvcache::recompute::chunk_head> one(model_, threads_, {}, 4 * length, 32, 16, {.split = {}});
        for (const tokens& document : documents_)
            static_cast<void>(must(one.runner.warm(std::span(document).first(64), {})));
        samples with, without;
        for (std::size_t i = 0; i < times; ++i) {
            const tokens first = fresh(length), second = fresh(length);
            const stopwatch watch;
            static_cast<void>(must(one.runner.prefill(first, kvcache::reuse_mode::chunks)));
            with.add(1e3 * watch.seconds());
            without.add(1e3 * alone(one, second));
        }
        to.push_back({.part = "speed",
                      .strategy = "nothing to reuse",
                      .ttft_ms = with.least(),
                      .full_ttft_ms = without.least(),
                      .forward_tokens = static_cast<double>(length),
                      .full_forward_tokens = static_cast<double>(length)});
    }

    static constexpr std::size_t question = 64;

private:
    template <class Policy>
    void run(const char* part, const std::string& name, Policy policy, const kvcache::index::chunking& split,
             const kvcache::warmup_options& how, kvcache::reuse_mode mode, std::vector<chunk_row>& to) {
        const std::size_t length = documents_.size() * size_ + question;
        arm<Policy> one(model_, threads_, std::move(policy), 4 * length, 32, 16, {.split = split, .store = false});
        for (const tokens& document : documents_)
            static_cast<void>(must(one.runner.warm(document, how)));
        chunk_row row{.part = part, .strategy = name};
        samples warm, full, off;
        for (std::size_t round = 0; round < rounds_; ++round) {
            tokens prompt;
            for (std::size_t i = 0; i < documents_.size(); ++i)
                append(prompt, documents_[(i * 3 + round) % documents_.size()]); // a new order
            append(prompt, fresh(question));
            const stopwatch cold_watch;
            const auto truth = must(one.runner.prefill(prompt, kvcache::reuse_mode::baseline, 0));
            full.add(1e3 * cold_watch.seconds());
            const stopwatch watch;
            const auto filled = must(one.runner.prefill(prompt, mode, 0));
            warm.add(1e3 * watch.seconds());
            off.add(kvcache::divergence(kvcache::row_of(truth.logits, 0), kvcache::row_of(filled.logits, 0)));
            const auto& counts = filled.counts;
            row.forward_tokens = static_cast<double>(counts.layer_rows) / static_cast<double>(model_.layers().size());
            row.full_forward_tokens = static_cast<double>(length);
            row.recomputed_share = static_cast<double>(counts.recomputed) /
                                   std::max(static_cast<double>(counts.recomputed + counts.approximate), 1.0);
            row.shared_mib = one.mib(counts.exact + counts.approximate);
        }
        row.ttft_ms = warm.median();
        row.full_ttft_ms = full.median();
        row.kl = off.median();
        if (to.empty())
            none_kl_ = row.kl;
        row.kl_none = none_kl_;
        to.push_back(row);
    }

    static void append(tokens& to, const tokens& more) { to.insert(to.end(), more.begin(), more.end()); }

    // Seconds of the forward passes alone, without searching or updating the index.
    template <class Arm>
    double alone(Arm& one, const tokens& prompt) {
        auto pass = model_.make_forward_pass<typename Arm::cache::lease>(threads_);
        kvcache::matrix logits(1, static_cast<Eigen::Index>(model_.vocabulary()));
        auto nothing = one.store.open();
        const stopwatch watch;
        auto lease = must(one.store.reserve(nothing, prompt.size()));
        for (std::size_t row = 0; row < prompt.size(); row += 256) {
            const auto part = std::span(prompt).subspan(row, std::min<std::size_t>(256, prompt.size() - row));
            const bool last = row + part.size() == prompt.size();
            const kvcache::batch_slice<typename Arm::cache::lease> rows{
                &lease, row, part, last ? kvcache::logits_mode::last : kvcache::logits_mode::none, {}, {}};
            pass.begin(std::span(&rows, 1));
            for (const auto layer : model_.layers())
                pass.forward(layer);
            if (last)
                pass.logits({logits.data(), model_.vocabulary()});
        }
        return watch.seconds();
    }

    [[nodiscard]] tokens fresh(std::size_t count) {
        tokens made;
        for (std::size_t i = 0; i < count; ++i) {
            salt_ = salt_ * 6364136223846793005u + 1442695040888963407u;
            made.push_back(kvcache::token_id{static_cast<std::int32_t>((salt_ >> 33) % model_.vocabulary())});
        }
        return made;
    }

    kvcache::transformer model_;
    kvcache::thread_pool threads_;
    std::size_t rounds_, size_;
    std::vector<tokens> documents_;
    std::uint64_t salt_ = 1;
    double none_kl_ = 0.0;
};

} // namespace bench
