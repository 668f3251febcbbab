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

/// What one measurement came to, and the most that it could have.
struct row {
    std::string name;
    std::size_t threads = 1;
    double value = 0.0; ///< A rate, or a time where the unit is one ("ms", "us", "ns").
    std::string unit;
    double limit = 0.0; ///< In the same unit, measured in the same run; 0: none is known.
    double ratio = 0.0; ///< The share of the limit that was reached: 1 is perfect.
    double best = 0.0;  ///< The same of the best sample to the limit's best: without a neighbour. 0: not taken.
};

[[nodiscard]] inline bool is_time(const std::string& unit) {
    return unit == "s" || unit == "ms" || unit == "us" || unit == "ns" || unit == "ns/token";
}

/// The share of a limit that was reached: value / limit for a rate, limit / value for a time; 0 without a limit.
[[nodiscard]] inline double share_of(double value, const std::string& unit, double limit) {
    const double over = is_time(unit) ? value : limit, under = is_time(unit) ? limit : value;
    return over > 0.0 && under > 0.0 ? under / over : 0.0;
}

/// A row with its ratio.
[[nodiscard]] inline row make_row(std::string name, std::size_t threads, double value, std::string unit, double limit) {
    const double ratio = share_of(value, unit, limit);
    return {.name = std::move(name),
            .threads = threads,
            .value = value,
            .unit = std::move(unit),
            .limit = limit,
            .ratio = ratio};
}

/// Repetitions of one measurement.
class samples {
public:
    void add(double value) { values_.push_back(value); }
    [[nodiscard]] bool empty() const noexcept { return values_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }

    /// The mean of the two middle ones where they are even; 0 if there are none.
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

/// The median share of a limit, of which a sample was taken beside each value.
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

/// Writes the rows as a JSON array of {name, threads, value, unit, limit, ratio}, and `best` where it was taken; limit
/// and ratio are null where no limit is known. False if the file cannot be written.
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

/// The geometric mean of the ratios of the rows that have a limit; 0 if none has.
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

/// The line that a program prints last.
inline void print_score(const std::string& program, const std::vector<row>& rows) {
    const auto counted = std::count_if(rows.begin(), rows.end(), [](const row& r) { return r.ratio > 0.0; });
    std::printf("score %s %.3f (geometric mean of %td ratios to the limits)\n", program.c_str(), score(rows), counted);
}

} // namespace bench
