// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace bench {

/// The result of one measurement and its limit.
struct row {
    std::string name;
    std::size_t threads = 1;
    double value = 0.0; ///< A rate, or a time if the unit is one ("ms", "us", "ns").
    std::string unit;
    double limit = 0.0; ///< In the same unit, measured in the same run; 0: no limit is known.
    double ratio = 0.0; ///< The share of the limit that is reached: 1 is perfect.
    double best = 0.0;  ///< The best sample over the limit's best, least affected by other load. 0: not measured.
};

[[nodiscard]] inline bool is_time(const std::string& unit) {
    return unit == "s" || unit == "ms" || unit == "us" || unit == "ns" || unit == "ns/token";
}

/// The share of a limit that is reached: value / limit for a rate, limit / value for a time; 0 without a limit.
[[nodiscard]] inline double share_of(double value, const std::string& unit, double limit) {
    const double over = is_time(unit) ? value : limit, under = is_time(unit) ? limit : value;
    return over > 0.0 && under > 0.0 ? under / over : 0.0;
}

/// Returns a row with its ratio computed.
[[nodiscard]] inline row make_row(std::string name, std::size_t threads, double value, std::string unit, double limit) {
    const double ratio = share_of(value, unit, limit);
    return {.name = std::move(name),
            .threads = threads,
            .value = value,
            .unit = std::move(unit),
            .limit = limit,
            .ratio = ratio};
}

/// The repetitions of one measurement.
class samples {
public:
    void add(double value) { values_.push_back(value); }
    [[nodiscard]] bool empty() const noexcept { return values_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }

    /// The median: the mean of the two middle samples if their number is even; 0 without samples.
    [[nodiscard]] double median() const {
        if (values_.empty())
            return 0.0;
        std::vector<double> sorted = values_;
        std::sort(sorted.begin(), sorted.end());
        const std::size_t middle = sorted.size() / 2;
        return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
    }
    [[nodiscard]] double least() const {
        return values_.empty() ? 0.0 : *std::min_element(values_.begin(), values_.end());
    }
    [[nodiscard]] double most() const {
        return values_.empty() ? 0.0 : *std::max_element(values_.begin(), values_.end());
    }

    [[nodiscard]] double operator[](std::size_t i) const { return values_[i]; }

private:
    std::vector<double> values_;
};

/// The median share of a limit that is sampled once per value: the median of the pairwise shares.
[[nodiscard]] inline double paired_share(const samples& values, const std::string& unit, const samples& limits) {
    samples shares;
    for (std::size_t i = 0; i < std::min(values.size(), limits.size()); ++i)
        shares.add(share_of(values[i], unit, limits[i]));
    return shares.median();
}

inline void print_heading() {
    std::printf("%-36s %7s %12s %-10s %12s %7s %7s\n", "name", "threads", "value", "unit", "limit", "ratio", "best");
}

inline void print(const row& r) {
    std::printf("%-36s %7zu %12.3f %-10s ", r.name.c_str(), r.threads, r.value, r.unit.c_str());
    if (r.limit > 0.0)
        std::printf("%12.3f %6.1f%%", r.limit, 100.0 * r.ratio);
    else
        std::printf("%12s %7s", "-", "-");
    if (r.best > 0.0)
        std::printf(" %6.1f%%", 100.0 * r.best);
    std::printf("\n");
    std::fflush(stdout);
}

/// Writes the rows as a JSON array of {name, threads, value, unit, limit, ratio}, plus `best` where it was measured;
/// limit and ratio are null where no limit is known. Returns false if the file cannot be written.
[[nodiscard]] inline bool write_json(const std::string& file, const std::vector<row>& rows) {
    auto list = nlohmann::json::array();
    for (const row& r : rows) {
        nlohmann::json one = {{"name", r.name}, {"threads", r.threads}, {"value", r.value},
                              {"unit", r.unit}, {"limit", nullptr},     {"ratio", nullptr}};
        if (r.limit > 0.0) {
            one["limit"] = r.limit;
            one["ratio"] = r.ratio;
        }
        if (r.best > 0.0)
            one["best"] = r.best;
        list.push_back(std::move(one));
    }
    std::ofstream out(file);
    out << list.dump(1) << '\n';
    out.close();
    return !out.fail();
}

/// The geometric mean of the ratios of the rows that have a limit; 0 if no row has one.
[[nodiscard]] inline double score(const std::vector<row>& rows) {
    double sum = 0.0;
    std::size_t counted = 0;
    for (const row& r : rows)
        if (r.ratio > 0.0) {
            sum += std::log(r.ratio);
            ++counted;
        }
    return counted == 0 ? 0.0 : std::exp(sum / static_cast<double>(counted));
}

/// Prints the score, the last line of a benchmark program.
inline void print_score(const std::string& program, const std::vector<row>& rows) {
    const auto counted = std::count_if(rows.begin(), rows.end(), [](const row& r) { return r.ratio > 0.0; });
    std::printf("score %s %.3f (geometric mean of %td ratios to the limits)\n", program.c_str(), score(rows), counted);
}

} // namespace bench
