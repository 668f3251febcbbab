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

/// One sample of a row, and of its limit if the two are measured together.
struct sample {
    double value = 0.0;
    double limit = 0.0;
};

/// The definition of a row to measure.
struct measurement {
    std::string name;
    std::size_t threads = 1;
    std::string unit;
    std::function<sample()> take;    ///< Takes one sample; called repeatedly until the time is used up.
    std::function<void()> open = {}; ///< Slow setup, called once before; if empty, `take` is called instead.
    std::string limited_by = {};     ///< The name of the row, with as many threads, that is the limit.
    double limit = 0.0;              ///< A constant limit, instead of a measured one.
    double aim = 0.0;                ///< The target ratio; 0: none.
    bool scored = false;             ///< Whether the row counts toward the score.
    int repetitions = 5;
    double seconds = 0.03; ///< The minimum time of a repetition.
};

/// A set of rows run by Google Benchmark. All repetitions of all rows run in one random order, so that other load on
/// the machine affects all rows alike. A row's value is the median over its repetitions of the median of each
/// repetition's samples; its ratio is computed the same way if each sample comes with its limit. The ratio of the best
/// samples is reported too, since a core shared with other tenants can be a third slower without any sign of it.
class suite {
public:
    suite(std::string program, int count, char** words) : program_(std::move(program)), name_(words[0]) {
        for (int i = 1; i < count; ++i)
            words_.emplace_back(words[i]);
    }

    void add(measurement row) { rows_.push_back({std::move(row), {}, {}, {}}); }

    /// Measures and prints the rows, then the score. Returns the exit status of main.
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
        samples values, limits, ratios;      // one per repetition
        double best = 0.0, best_limit = 0.0; // over all samples
    };

    // A reporter that collects the counters of the repetitions and prints nothing.
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

    // Keeps the rows that match the filter, and the rows that are their limits.
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
    int repetitions_ = 0; // 0: the number that each row defines
    bool list_ = false;
};

} // namespace bench
