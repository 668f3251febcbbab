// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/machine.hpp"
#include "../support/must.hpp"
#include "../support/rows.hpp"

namespace bench {

using tokens = std::vector<kvcache::token_id>;
using cache = kvcache::cache<>;
using pipeline_type = kvcache::pipeline<cache, kvcache::transformer>;
using sequence = cache::sequence;

/// The machine's limits with a number of threads, sampled throughout the run.
struct machine_limits {
    samples stream; ///< Bytes per second.
    samples peak;   ///< FLOP/s; the maximum counts, since only other load lowers a sample.
};

/// The model under test, its cache and the lower bounds of its costs. The cache is full from the start, as in a process
/// that has run for a while: every prompt evicts a page, and no page is new to the system, which would have to clear it
/// first.
class subject {
public:
    subject(const kvcache::transformer& model, std::size_t rows, std::size_t max_batch_tokens)
        : model_(model),
          max_batch_tokens_(max_batch_tokens),
          cache_(new cache(
              kvcache::make_cache({.shape = model.shape(page_tokens), .limit = {.bytes = bytes_for(model, rows)}}))) {
        static_cast<void>(past(rows));
    }

    [[nodiscard]] cache& pages() const { return *cache_; }
    [[nodiscard]] const kvcache::transformer& model() const { return model_; }
    [[nodiscard]] std::size_t max_batch_tokens() const { return max_batch_tokens_; }

    /// Returns tokens that no earlier prompt had.
    [[nodiscard]] tokens fresh(std::size_t count) {
        tokens made;
        for (std::size_t i = 0; i < count; ++i) {
            salt_ = salt_ * 6364136223846793005u + 1442695040888963407u;
            made.push_back(kvcache::token_id{static_cast<std::int32_t>(3 + (salt_ >> 33) % (model_.vocabulary() - 3))});
        }
        return made;
    }

    /// Returns a sequence of `positions` positions whose keys and values are noise. Work after it takes as long as
    /// after a real prompt, without the time of a prefill.
    [[nodiscard]] sequence past(std::size_t positions) {
        sequence made = cache_->open();
        if (positions == 0)
            return made;
        auto lease = must(cache_->reserve(made, positions));
        const std::size_t width = model_.config().kv_heads * model_.config().head_dim;
        constexpr std::size_t ring = 4093;
        std::vector<float> noise(ring + width);
        for (float& x : noise) {
            salt_ = salt_ * 6364136223846793005u + 1442695040888963407u;
            x = 2.0f * static_cast<float>(static_cast<std::int32_t>(salt_ >> 32)) * 0x1p-31f;
        }
        for (const auto layer : model_.layers())
            for (std::size_t row = 0; row < positions; ++row) {
                const std::size_t at = (index_of(layer) * 131 + row * 17) % ring;
                lease.write(layer, row, {&noise[at], width}, {&noise[(at * 7) % ring], width});
            }
        lease.commit(fresh(positions));
        return made;
    }

    /// The weight bytes that every token reads: the blocks' matrices and the output head.
    [[nodiscard]] double weight_bytes() const { return static_cast<double>(model_.weight_bytes()); }
    /// The bytes of the keys and values of one position.
    [[nodiscard]] double position_bytes() const {
        return static_cast<double>(cache_->codec().page_bytes()) / page_tokens;
    }
    /// The FLOPs of a prefill of `count` tokens after `depth` tokens, with one row of logits.
    [[nodiscard]] double flops(std::size_t count, std::size_t depth) const {
        const auto n = static_cast<double>(count), d = static_cast<double>(depth);
        const auto& c = model_.config();
        const double seen = n * d + n * (n + 1.0) / 2.0;
        return 2.0 * n * block_weights() + 2.0 * head_weights() +
               4.0 * seen * static_cast<double>(c.layers * c.heads * c.head_dim);
    }

    /// The minimum seconds of a forward pass over `count` tokens of one sequence after `depth` tokens.
    [[nodiscard]] double bound(const machine_limits& most, std::size_t count, std::size_t depth) const {
        const double bytes = weight_bytes() + position_bytes() * static_cast<double>(depth);
        return std::max(bytes / most.stream.median(), flops(count, depth) / most.peak.most());
    }

    static constexpr std::uint32_t page_tokens = 64;

private:
    [[nodiscard]] static std::size_t bytes_for(const kvcache::transformer& model, std::size_t rows) {
        return (rows / page_tokens + 1) * kvcache::codec::f32{}.open(model.shape(page_tokens)).page_bytes();
    }
    [[nodiscard]] double block_weights() const {
        const auto& c = model_.config();
        return static_cast<double>(c.layers * c.hidden_size *
                                   ((2 * c.heads + 2 * c.kv_heads) * c.head_dim + 3 * c.intermediate_size));
    }
    [[nodiscard]] double head_weights() const {
        return static_cast<double>(model_.config().vocabulary * model_.config().hidden_size);
    }

    const kvcache::transformer& model_;
    std::size_t max_batch_tokens_;
    std::unique_ptr<cache> cache_;
    std::uint64_t salt_ = 1;
};

/// The samples of a run by name, in the order of their first appearance.
class journal {
public:
    /// A function that makes a row from the samples.
    using form = std::function<row(const samples&)>;

    void add(const std::string& name, std::size_t threads, double value, form make) {
        const auto key = std::pair(name, threads);
        if (!places_.contains(key)) {
            places_[key] = lines_.size();
            lines_.push_back({{}, std::move(make)});
        }
        lines_[places_[key]].values.add(value);
    }

    [[nodiscard]] const samples& values(const std::string& name, std::size_t threads) const {
        return lines_.at(places_.at({name, threads})).values;
    }

    [[nodiscard]] std::vector<row> rows() const {
        std::vector<row> made;
        for (const line& one : lines_)
            made.push_back(one.make(one.values));
        return made;
    }

private:
    struct line {
        samples values;
        form make;
    };
    std::map<std::pair<std::string, std::size_t>, std::size_t> places_;
    std::vector<line> lines_;
};

/// The context of one round of one scenario, with a number of threads.
struct visit {
    subject& of;
    kvcache::thread_pool& threads;
    pipeline_type& runner;
    machine_limits& most;
    journal& book;

    /// Records seconds as a row of tokens per second; `bound` returns the minimum seconds for the same `count` tokens.
    void rate(const std::string& name, double seconds, double count, std::function<double()> bound) const {
        const std::size_t n = threads.threads();
        book.add(name, n, count / seconds, [name, n, count, bound = std::move(bound)](const samples& s) {
            return make_row(name, n, s.median(), "tokens/s", count / bound());
        });
    }
    /// Records seconds as a row of milliseconds; `bound` returns the minimum seconds.
    void time(const std::string& name, double seconds, std::function<double()> bound) const {
        const std::size_t n = threads.threads();
        book.add(name, n, 1e3 * seconds, [name, n, bound = std::move(bound)](const samples& s) {
            return make_row(name, n, s.median(), "ms", 1e3 * bound());
        });
    }
    /// Records seconds as a row of milliseconds whose limit is another row, sampled once per sample of this row.
    void time(const std::string& name, double seconds, const std::string& limit) const {
        const std::size_t n = threads.threads();
        book.add(name, n, 1e3 * seconds, [&of = book, name, n, limit](const samples& s) {
            const samples& least = of.values(limit, n);
            row made = make_row(name, n, s.median(), "ms", least.median());
            made.ratio = paired_share(s, "ms", least);
            return made;
        });
    }
};

} // namespace bench
