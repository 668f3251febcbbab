// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "rows.hpp"
#include <benchmark/benchmark.h>

namespace bench {

/// One sample of a row, and of what bounds it where both are taken in turn.
struct sample {
    double value = 0.0;
    double limit = 0.0;
};

/// A row to be measured.
struct measurement {
    std::string name;
    std::size_t threads = 1;
    std::string unit;
    std::function<sample()> take;    ///< Called as often as there is time for.
    std::function<void()> open = {}; ///< Called once before, for what takes long; without one, `take` is.
    std::string limited_by = {};     ///< The name of the row, of as many threads, that is its limit.
    double limit = 0.0;              ///< Or a limit that is no measurement.
    double aim = 0.0;                ///< The ratio that it is to reach; 0: none.
    bool scored = false;             ///< Counts for the score.
    int repetitions = 5;
    double seconds = 0.03; ///< The least time of a repetition.
};

/// Rows over Google Benchmark: all repetitions of all rows in one random order, so that a noisy neighbour meets all
/// alike. A row's value is the median of its repetitions, each the median of its samples, and so is its ratio where
/// each sample has its limit's; beside it stands that of the best samples, since a core that is shared with strangers
/// does a third less without saying so.
class suite {
public:
    suite(std::string program, int count, char** words) : program_(std::move(program)), name_(words[0]) {
        for (int i = 1; i < count; ++i)
            words_.emplace_back(words[i]);
    }

    void add(measurement row) { rows_.push_back({std::move(row), {}, {}, {}}); }

    /// Measures, prints the rows and then the score. Returns what main returns.
    [[nodiscard]] int run() {
        if (!read_flags())
            return 2;
        if (list_) {
            for (const measured& row : rows_)
                std::printf("%s/%zu\n", row.of.name.c_str(), row.of.threads);
            return 0;
        }
        select();
        if (rows_.empty())
            return std::fprintf(stderr, "%s: no row's name matches %s\n", program_.c_str(), filter_.c_str()), 1;
        measure();
        return report();
    }

private:
    struct measured {
        measurement of;
        samples values, limits, ratios;      // one a repetition
        double best = 0.0, best_limit = 0.0; // of all samples
    };

    // Keeps what the repetitions counted, and prints nothing.
    class collector : public benchmark::BenchmarkReporter {
    public:
        explicit collector(std::deque<measured>& rows) {
            for (measured& row : rows)
                rows_[key(row.of)] = &row;
        }
        bool ReportContext(const Context&) override { return true; }
        void ReportRuns(const std::vector<Run>& runs) override {
            for (const Run& run : runs) {
                const auto found = rows_.find(run.run_name.function_name);
                if (found == rows_.end() || run.run_type != Run::RT_Iteration)
                    continue;
                found->second->values.add(run.counters.at("value").value);
                found->second->limits.add(run.counters.at("limit").value);
                found->second->ratios.add(run.counters.at("ratio").value);
                found->second->best = std::max(found->second->best, run.counters.at("best").value);
                found->second->best_limit = std::max(found->second->best_limit, run.counters.at("best_limit").value);
            }
        }

    private:
        std::map<std::string, measured*> rows_;
    };

    [[nodiscard]] static std::string key(const measurement& row) {
        return row.name + "/" + std::to_string(row.threads);
    }

    [[nodiscard]] bool read_flags() {
        for (std::size_t i = 0; i < words_.size(); ++i) {
            const std::string& word = words_[i];
            const bool more = i + 1 < words_.size();
            if (word == "--json" && more)
                json_ = words_[++i];
            else if (word == "--filter" && more)
                filter_ = words_[++i];
            else if (word == "--repetitions" && more)
                repetitions_ = std::atoi(words_[++i].c_str());
            else if (word == "--list")
                list_ = true;
            else {
                std::fprintf(stderr, "%s [--filter REGEX] [--json FILE] [--repetitions N] [--list]\n",
                             program_.c_str());
                return false;
            }
        }
        return true;
    }

    // The rows that match, and those that limit them.
    void select() {
        const std::regex wanted(filter_);
        const auto matches = [&](const measurement& row) { return std::regex_search(key(row), wanted); };
        std::deque<measured> kept;
        for (const measured& row : rows_) {
            const bool limits = std::any_of(rows_.begin(), rows_.end(), [&](const measured& other) {
                return other.of.limited_by == row.of.name && other.of.threads == row.of.threads && matches(other.of);
            });
            if (limits || matches(row.of))
                kept.push_back(row);
        }
        rows_ = std::move(kept);
    }

    void measure() {
        std::vector<std::string> flags{name_, "--benchmark_enable_random_interleaving=true"};
        std::vector<char*> arguments;
        for (std::string& flag : flags)
            arguments.push_back(flag.data());
        int count = static_cast<int>(arguments.size());
        benchmark::Initialize(&count, arguments.data());
        for (const measured& row : rows_) {
            const auto run = [&of = row.of, opened = false](benchmark::State& state) mutable {
                if (!std::exchange(opened, true))
                    of.open ? of.open() : static_cast<void>(of.take());
                samples values, limits;
                for (auto _ : state) {
                    const sample taken = of.take();
                    values.add(taken.value);
                    limits.add(taken.limit);
                }
                state.counters["value"] = values.median();
                state.counters["limit"] = limits.median();
                state.counters["ratio"] = paired_share(values, of.unit, limits);
                state.counters["best"] = values.most();
                state.counters["best_limit"] = limits.most();
            };
            benchmark::RegisterBenchmark(key(row.of).c_str(), run)
                ->UseRealTime()
                ->MinTime(row.of.seconds)
                ->Repetitions(repetitions_ > 0 ? repetitions_ : row.of.repetitions);
        }
        collector reporter(rows_);
        benchmark::RunSpecifiedBenchmarks(&reporter);
    }

    [[nodiscard]] int report() const {
        std::vector<row> all, scored;
        std::vector<std::string> short_of;
        print_heading();
        for (const measured& m : rows_) {
            double limit = m.of.limit > 0.0 ? m.of.limit : m.limits.median();
            double best_limit = m.of.limit > 0.0 ? m.of.limit : m.best_limit;
            for (const measured& other : rows_)
                if (other.of.name == m.of.limited_by && other.of.threads == m.of.threads) {
                    limit = other.values.median();
                    best_limit = other.best;
                }
            row r = make_row(m.of.name, m.of.threads, m.values.median(), m.of.unit, limit);
            if (m.limits.median() > 0.0)
                r.ratio = m.ratios.median();
            if (best_limit > 0.0 && !is_time(m.of.unit))
                r.best = m.best / best_limit;
            print(r);
            all.push_back(r);
            if (m.of.scored)
                scored.push_back(r);
            if (r.ratio < m.of.aim) {
                char words[160];
                std::snprintf(words, sizeof words, "%s, threads %zu: %.1f%% of %.1f%%", r.name.c_str(), r.threads,
                              100.0 * r.ratio, 100.0 * m.of.aim);
                short_of.emplace_back(words);
            }
        }
        if (!short_of.empty())
            std::printf("\nshort of their aim:\n");
        for (const std::string& words : short_of)
            std::printf("  %s\n", words.c_str());
        std::printf("\n");
        print_score(program_, scored.empty() ? all : scored);
        if (!json_.empty() && !write_json(json_, all))
            return std::fprintf(stderr, "%s: cannot write %s\n", program_.c_str(), json_.c_str()), 1;
        return 0;
    }

    std::string program_, name_;
    std::vector<std::string> words_;
    std::deque<measured> rows_;
    std::string json_, filter_;
    int repetitions_ = 0; // 0: each row's own
    bool list_ = false;
};

} // namespace bench
