// SPDX-License-Identifier: MIT
//
// The price of dropping keys and values while a model generates: perplexity after a long context, and a sentence that
// is found again, with a budget of positions per head. Attention is computed here, over the positions that are kept.
#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "../examples/support/model_directory.hpp"
#include "../examples/support/perplexity.hpp"
#include "support/must.hpp"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using bench::must;
using store = kv::cache<kv::codec::f32>;

/// How positions are chosen that stay.
enum class retention {
    full,    ///< All.
    recent,  ///< The first four and the last (StreamingLLM, without moving positions).
    head,    ///< H2O: for each head of a layer half of the budget are the last ones, half have the most attention.
    layer,   ///< The same with one choice for the heads of a layer.
    token,   ///< The same with one choice for all layers and heads, as a cache of whole tokens can make it.
    page,    ///< The same by pages of 64 tokens.
    snap,    ///< As head, by the attention of the last 32 positions of the context (SnapKV).
    pyramid, ///< As snap, with 1.75 times the budget in the first layer down to 0.25 in the last (PyramidKV).
};

const char* name_of(retention policy) {
    static const char* const names[] = {"full",      "recent",   "h2o_head", "h2o_layer",
                                        "h2o_token", "h2o_page", "snapkv",   "pyramidkv"};
    return names[static_cast<std::size_t>(policy)];
}

/// Keys and values of one sequence outside of pages, the positions that are kept, and the attention that each has had.
class kept_rows {
public:
    kept_rows(kv::page_shape shape, std::size_t positions)
        : shape_(shape), positions_(positions), heads_(std::size_t{shape.layers} * shape.kv_heads) {
        for (head& one : heads_) {
            one.keys.resize(positions * shape.head_dim);
            one.values.resize(positions * shape.head_dim);
            one.mass.assign(positions, 0.0f);
            one.late.assign(positions, 0.0f);
        }
    }

    std::size_t observe_from = std::numeric_limits<std::size_t>::max(); ///< First position whose attention is `late`.

    void write(std::size_t layer, std::size_t position, std::span<const float> keys, std::span<const float> values) {
        for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
            head& to = heads_[layer * shape_.kv_heads + h];
            std::copy_n(keys.data() + h * shape_.head_dim, shape_.head_dim,
                        to.keys.data() + position * shape_.head_dim);
            std::copy_n(values.data() + h * shape_.head_dim, shape_.head_dim,
                        to.values.data() + position * shape_.head_dim);
        }
    }

    /// Adds positions [first, last), which are kept until the next choice.
    void add(std::size_t first, std::size_t last) {
        for (head& one : heads_)
            for (std::size_t p = first; p < last; ++p)
                one.kept.push_back(p);
    }

    /// Attends from `queries` (rows, head_dim), rotated and scaled, at ascending positions, to what is kept up to each.
    void attend(std::size_t layer, std::size_t kv_head, const kv::matrix& queries, std::span<const std::size_t> at,
                kv::matrix& out) {
        head& from = heads_[layer * shape_.kv_heads + kv_head];
        const auto n = static_cast<Eigen::Index>(from.kept.size()), dim = static_cast<Eigen::Index>(shape_.head_dim);
        kv::matrix keys(n, dim), values(n, dim);
        for (Eigen::Index i = 0; i < n; ++i) {
            const std::size_t row = from.kept[static_cast<std::size_t>(i)] * shape_.head_dim;
            std::copy_n(from.keys.data() + row, shape_.head_dim, keys.row(i).data());
            std::copy_n(from.values.data() + row, shape_.head_dim, values.row(i).data());
        }
        kv::matrix scores = queries * keys.transpose();
        for (Eigen::Index q = 0; q < scores.rows(); ++q) {
            const std::size_t position = at[static_cast<std::size_t>(q)];
            const auto seen = static_cast<Eigen::Index>(std::upper_bound(from.kept.begin(), from.kept.end(), position) -
                                                        from.kept.begin());
            auto row = scores.row(q);
            const float most = row.head(seen).maxCoeff();
            row.head(seen) = (row.head(seen).array() - most).exp();
            row.tail(n - seen).setZero();
            row /= row.head(seen).sum();
            for (Eigen::Index i = 0; i < seen; ++i) {
                const std::size_t p = from.kept[static_cast<std::size_t>(i)];
                from.mass[p] += row[i];
                if (position >= observe_from)
                    from.late[p] += row[i];
            }
        }
        out.noalias() = scores * values;
    }

    /// Keeps at most `budget` positions of each head, on average.
    void choose(retention policy, std::size_t budget) {
        if (policy == retention::full)
            return;
        const std::size_t per_layer = shape_.kv_heads, layers = shape_.layers;
        std::vector<float> all(positions_, 0.0f);
        for (const head& one : heads_)
            for (std::size_t p = 0; p < positions_; ++p)
                all[p] += one.mass[p];
        for (std::size_t l = 0; l < layers; ++l) {
            std::vector<float> of_layer(positions_, 0.0f);
            for (std::size_t h = 0; h < per_layer; ++h)
                for (std::size_t p = 0; p < positions_; ++p)
                    of_layer[p] += heads_[l * per_layer + h].mass[p];
            const double share = policy == retention::pyramid
                                     ? 1.75 - 1.5 * static_cast<double>(l) / static_cast<double>(layers - 1)
                                     : 1.0;
            const auto own = static_cast<std::size_t>(share * static_cast<double>(budget));
            for (std::size_t h = 0; h < per_layer; ++h) {
                head& one = heads_[l * per_layer + h];
                const bool late = policy == retention::snap || policy == retention::pyramid;
                const std::vector<float>& score = policy == retention::token || policy == retention::page ? all
                                                  : policy == retention::layer                            ? of_layer
                                                  : late                                                  ? one.late
                                                                                                          : one.mass;
                one.kept = policy == retention::page ? pages(one.kept, own, score)
                                                     : best(one.kept, own, policy == retention::recent, score);
            }
        }
    }

    /// Bytes of the keys and values that are kept.
    [[nodiscard]] std::size_t bytes() const {
        std::size_t rows = 0;
        for (const head& one : heads_)
            rows += one.kept.size();
        return rows * 2 * shape_.head_dim * sizeof(float);
    }

private:
    struct head {
        std::vector<float> keys, values; // (positions, head_dim)
        std::vector<float> mass;         // attention that each position has had
        std::vector<float> late;         // the same, from queries at `observe_from` on
        std::vector<std::size_t> kept;   // ascending
    };

    static std::vector<std::size_t> best(const std::vector<std::size_t>& kept, std::size_t budget, bool only_recent,
                                         const std::vector<float>& score) {
        if (kept.size() <= budget)
            return kept;
        const std::size_t sinks = 4, recent = only_recent ? budget - sinks : budget / 2;
        std::vector<std::size_t> made(kept.begin(), kept.begin() + sinks);
        std::vector<std::size_t> middle(kept.begin() + sinks, kept.end() - static_cast<std::ptrdiff_t>(recent));
        const std::size_t heavy = std::min(middle.size(), budget - sinks - recent);
        std::partial_sort(middle.begin(), middle.begin() + static_cast<std::ptrdiff_t>(heavy), middle.end(),
                          [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
        made.insert(made.end(), middle.begin(), middle.begin() + static_cast<std::ptrdiff_t>(heavy));
        made.insert(made.end(), kept.end() - static_cast<std::ptrdiff_t>(recent), kept.end());
        std::sort(made.begin(), made.end());
        return made;
    }

    // Whole pages of 64: the first, those of the last half of the budget, and those with the most attention.
    static std::vector<std::size_t> pages(const std::vector<std::size_t>& kept, std::size_t budget,
                                          const std::vector<float>& score) {
        constexpr std::size_t page = 64;
        if (kept.size() <= budget)
            return kept;
        const std::size_t last = kept.back() / page, recent = budget / 2 / page, most = budget / page;
        std::vector<std::pair<float, std::size_t>> middle;
        std::vector<bool> chosen(last + 1, false);
        for (std::size_t i = 0; i < kept.size();) {
            const std::size_t one = kept[i] / page;
            float sum = 0.0f;
            for (; i < kept.size() && kept[i] / page == one; ++i)
                sum += score[kept[i]];
            if (one == 0 || one + recent >= last)
                chosen[one] = true;
            else
                middle.emplace_back(sum, one);
        }
        std::sort(middle.rbegin(), middle.rend());
        for (std::size_t i = 0; i < middle.size() && i + recent + 1 < most; ++i)
            chosen[middle[i].second] = true;
        std::vector<std::size_t> made;
        for (const std::size_t p : kept)
            if (chosen[p / page])
                made.push_back(p);
        return made;
    }

    kv::page_shape shape_;
    std::size_t positions_;
    std::vector<head> heads_;
};

/// Attention over kept rows, for a forward pass.
template <class Lease>
class kept_attention {
public:
    explicit kept_attention(kept_rows& rows) : rows_(&rows) {}

    void plan(std::span<const kv::attention_kind> kinds, std::span<const kv::batch_slice<Lease>> batch,
              const kv::thread_pool&) {
        if (kinds.size() != 1 || kinds[0].rows.rotations == nullptr)
            throw std::runtime_error("a model whose layers all attend alike, with RoPE, is needed");
        shape_ = kinds[0].shape;
        queries_ = kinds[0].rows;
        at_.clear();
        for (const auto& part : batch)
            for (std::size_t i = 0; i < part.tokens.size(); ++i)
                at_.push_back(part.position(i));
        if (!at_.empty())
            rows_->add(at_.front(), at_.back() + 1);
    }
    void write(const Lease& lease, std::size_t to, std::size_t, const kv::attended_layer& at,
               std::span<const float> keys, std::span<const float> values) const {
        rows_->write(kv::index_of(at.layer), lease.first() + to, keys, values);
        lease.write(at.layer, to, keys, values);
    }
    void run(const kv::attended_layer& layer, kv::thread_pool& threads) {
        const std::size_t dim = shape_.head_dim, group = shape_.group();
        threads.parallel_for(shape_.kv_heads, std::size_t{1} << 30, [&](std::size_t begin, std::size_t end) {
            for (std::size_t h = begin; h < end; ++h) {
                kv::matrix queries(static_cast<Eigen::Index>(at_.size() * group), static_cast<Eigen::Index>(dim)), out;
                std::vector<std::size_t> at;
                for (std::size_t r = 0; r < at_.size(); ++r)
                    for (std::size_t g = 0; g < group; ++g) {
                        auto to = queries.row(static_cast<Eigen::Index>(r * group + g));
                        kv::rotate_head({queries_.data + r * queries_.stride + (h * group + g) * dim, dim},
                                        {queries_.rotations + r * dim, dim}, {to.data(), dim});
                        to *= shape_.scale;
                        at.push_back(at_[r]);
                    }
                rows_->attend(kv::index_of(layer.layer), h, queries, at, out);
                for (std::size_t r = 0; r < at_.size(); ++r)
                    for (std::size_t g = 0; g < group; ++g)
                        std::copy_n(out.row(static_cast<Eigen::Index>(r * group + g)).data(), dim,
                                    queries_.out + r * queries_.out_stride + (h * group + g) * dim);
            }
        });
    }

private:
    kept_rows* rows_;
    kv::attention_shape shape_;
    kv::query_rows queries_;
    std::vector<std::size_t> at_; // positions of the batch
};

/// A model whose attention sees kept rows only.
struct keeping_model {
    const kv::transformer& model;
    kept_rows* rows;

    [[nodiscard]] std::size_t vocabulary() const { return model.vocabulary(); }
    [[nodiscard]] std::size_t max_positions() const { return model.max_positions(); }
    [[nodiscard]] auto layers() const { return model.layers(); }
    template <class Lease>
    [[nodiscard]] auto make_forward_pass(kv::thread_pool& threads) const {
        return model.make_forward_pass<Lease, kept_attention<Lease>>(threads, kept_attention<Lease>(*rows));
    }
};

/// A context that was read with all its positions, and then keeps a budget of them.
class reader {
public:
    reader(const kv::transformer& model, kv::thread_pool& threads, std::size_t positions)
        : rows_(model.shape(64), positions),
          with_{model, &rows_},
          store_(kv::make_cache({.shape = model.shape(64), .limit = {.bytes = std::size_t{1} << 30}})),
          pipeline_(store_, with_, threads, 256),
          sequence_(store_.open()) {}

    kv::matrix read(std::span<const kv::token_id> more, kv::logits_mode wanted) {
        return must(pipeline_.extend(sequence_, more, wanted));
    }
    kept_rows& rows() { return rows_; }
    /// Remembers the state, for `restore`.
    void keep() {
        kept_ = std::make_unique<kept_rows>(rows_);
        size_ = sequence_.size();
    }
    void restore() {
        rows_ = *kept_;
        sequence_.truncate(size_);
    }

private:
    kept_rows rows_;
    keeping_model with_;
    store store_;
    kv::pipeline<store, keeping_model> pipeline_;
    store::sequence sequence_;
    std::unique_ptr<kept_rows> kept_;
    std::size_t size_ = 0;
};

struct options {
    std::string model, text, json;
    std::size_t context = 1536, next = 256, windows = 3, threads = 2;
    std::vector<std::size_t> budgets{768, 384, 192};
};

/// A policy with a budget, and its results.
struct outcome {
    retention policy = retention::full;
    std::size_t budget = 0;
    support::quality_sum quality = {};
    std::size_t bytes = 0;
    double seconds = 0.0;               ///< Of the tokens after the contexts, the choices included.
    std::string found = {}, asked = {}; ///< A sign for each depth.
};

class experiment {
public:
    experiment(const options& of, const kv::transformer& model, const kv::tokenizer& words)
        : of_(of), model_(model), words_(words), threads_(of.threads) {
        std::ifstream in(of.text);
        const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
        text_ = must(words.encode(std::string_view(all).substr(0, 400000), {}));
        outcomes_.push_back({retention::full, of.context + of.next});
        for (const std::size_t budget : of.budgets)
            for (const auto policy : {retention::recent, retention::page, retention::token, retention::layer,
                                      retention::head, retention::snap, retention::pyramid})
                outcomes_.push_back({policy, budget});
    }

    const std::vector<outcome>& run() {
        for (std::size_t w = 0; w < of_.windows; ++w)
            perplexity(w);
        for (int depth = 0; depth < 5; ++depth)
            for (const bool asked : {false, true})
                needle(depth, asked);
        return outcomes_;
    }

private:
    // The tokens after a context, 16 at a time, each time within the budget.
    void perplexity(std::size_t window) {
        constexpr std::size_t step = 16;
        const auto all = std::span(text_).subspan(window * 4096, of_.context + of_.next);
        const std::size_t first = of_.context - 1;
        reader one(model_, threads_, all.size());
        one.rows().observe_from = of_.context - 32;
        (void)one.read(all.first(first), kv::logits_mode::none);
        one.keep();
        std::vector<kv::matrix> exact;
        for (outcome& to : outcomes_) {
            one.restore();
            const support::stopwatch clock;
            double scored = 0.0;
            one.rows().choose(to.policy, to.budget);
            for (std::size_t at = first, block = 0; at + 1 < all.size(); at += step, ++block) {
                const std::size_t n = std::min(step, all.size() - 1 - at);
                const kv::matrix made = one.read(all.subspan(at, n), kv::logits_mode::all);
                one.rows().choose(to.policy, to.budget);
                const double before = clock.milliseconds();
                if (to.policy == retention::full)
                    exact.push_back(made);
                to.quality.add(exact[block], made, all.subspan(at + 1, n));
                scored += clock.milliseconds() - before;
            }
            to.seconds += (clock.milliseconds() - scored) / 1000.0;
            to.bytes = one.rows().bytes();
        }
    }

    // Whether the number of a sentence is said that was read at a depth of the context, in quarters. `asked`: the
    // question is a part of the context, and its attention counts.
    void needle(int depth, bool asked) {
        const std::string number = std::to_string(48213 + 9371 * depth);
        const auto encode = [&](const std::string& words) {
            return must(words_.encode(words, {.add_special_tokens = false}));
        };
        const tokens opening = encode("<|im_start|>user\n");
        const tokens fact = encode("\n\nThe secret number of the lighthouse is " + number + ".\n\n");
        const tokens question =
            encode("\n\nWhat is the secret number of the lighthouse?<|im_end|>\n<|im_start|>assistant\n"
                   "The secret number of the lighthouse is");
        const std::size_t hay = of_.context - opening.size() - fact.size();
        const std::size_t before = hay * static_cast<std::size_t>(depth) / 4;
        tokens context = opening;
        const auto add = [&](std::span<const kv::token_id> more) {
            context.insert(context.end(), more.begin(), more.end());
        };
        add(std::span(text_).subspan(20000, before)), add(fact),
            add(std::span(text_).subspan(20000 + before, hay - before));
        if (asked)
            add(std::span(question).first(question.size() - 1));
        reader one(model_, threads_, context.size() + question.size() + 16);
        one.rows().observe_from = context.size() - 32;
        (void)one.read(context, kv::logits_mode::none);
        one.keep();
        for (outcome& to : outcomes_) {
            one.restore();
            one.rows().choose(to.policy, to.budget);
            kv::matrix next =
                one.read(asked ? std::span(question).last(1) : std::span(question), kv::logits_mode::last);
            tokens said;
            for (int i = 0; i < 8; ++i) {
                Eigen::Index best = 0;
                next.row(0).maxCoeff(&best);
                said.push_back(kv::token_id{static_cast<std::int32_t>(best)});
                next = one.read(std::span(said).last(1), kv::logits_mode::last);
            }
            const bool found = words_.decode(said, {}).find(number) != std::string::npos;
            (asked ? to.asked : to.found) += found ? '+' : '-';
        }
    }

    const options& of_;
    const kv::transformer& model_;
    const kv::tokenizer& words_;
    kv::thread_pool threads_;
    tokens text_;
    std::vector<outcome> outcomes_;
};

int program(int count, char** words) {
    options given;
    CLI::App app("The price of dropping keys and values while a model generates.");
    app.add_option("--model", given.model, "Model directory or GGUF file")->required();
    app.add_option("--text", given.text, "Text for perplexity and around the sentence to be found")->required();
    app.add_option("--context", given.context, "Tokens that are read before any is dropped");
    app.add_option("--next", given.next, "Tokens after them whose perplexity is measured");
    app.add_option("--windows", given.windows, "Contexts");
    app.add_option("--budget", given.budgets, "Positions that each head keeps");
    app.add_option("--threads", given.threads, "Threads");
    app.add_option("--json", given.json, "A file for the rows");
    CLI11_PARSE(app, count, words);
    const auto loaded = must(kv::load_model(given.model));
    const auto speaks = must(kv::tokenizer::open(given.model));
    experiment all(given, loaded.model, speaks);
    nlohmann::json rows = nlohmann::json::array();
    std::printf("%-10s %6s %10s %8s %7s  %-5s  %-5s %10s %8s\n", "policy", "budget", "perplexity", "KL", "same",
                "later", "asked", "KiB", "seconds");
    for (const outcome& one : all.run()) {
        const auto mean = one.quality.mean();
        std::printf("%-10s %6zu %10.4f %8.4f %6.2f%%  %-5s  %-5s %10zu %8.2f\n", name_of(one.policy), one.budget,
                    mean.perplexity, mean.divergence, 100.0 * mean.agreement, one.found.c_str(), one.asked.c_str(),
                    one.bytes / 1024, one.seconds);
        rows.push_back({{"policy", name_of(one.policy)},
                        {"budget", one.budget},
                        {"perplexity", mean.perplexity},
                        {"kl", mean.divergence},
                        {"same_token", mean.agreement},
                        {"needle", one.found},
                        {"needle_asked", one.asked},
                        {"bytes", one.bytes},
                        {"seconds", one.seconds}});
    }
    if (!given.json.empty()) {
        std::ofstream out(given.json);
        out << rows.dump(1) << '\n';
        out.close();
        if (out.fail())
            throw std::runtime_error(given.json + ": cannot be written");
    }
    return 0;
}

} // namespace

int main(int count, char** words) {
    return support::guarded("retention", [&] { return program(count, words); });
}
