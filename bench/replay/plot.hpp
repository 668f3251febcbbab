// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report.hpp"

namespace bench {

/// An SVG plot of hit ratio over capacity: one curve per policy, the clairvoyant bound dashed, an infinite cache
/// dotted, the capacity on a logarithmic axis.
class hit_ratio_plot {
public:
    /// Prepares the curves. `unit` is the unit of capacities: "blocks" or "bytes".
    hit_ratio_plot(const std::vector<replay_row>& rows, std::string title, std::string unit)
        : title_(std::move(title)), unit_(std::move(unit)) {
        curve bound{"clairvoyant", {}};
        for (const replay_row& row : rows) {
            if (!row.capacity.units) {
                infinite_ = row.counts.hit_ratio();
                continue;
            }
            if (curves_.empty() || curves_.back().name != row.policy)
                curves_.push_back({row.policy, {}});
            const auto at = static_cast<double>(*row.capacity.units);
            curves_.back().points.emplace_back(at, row.counts.hit_ratio());
            if (row.clairvoyant && row.policy == rows.front().policy)
                bound.points.emplace_back(at, *row.clairvoyant);
        }
        curves_.push_back(std::move(bound));
        for (curve& one : curves_) {
            std::sort(one.points.begin(), one.points.end());
            for (const auto& [x, y] : one.points) {
                least_ = std::min(least_, x);
                most_ = std::max(most_, x);
                top_ = std::max(top_, y);
            }
        }
        if (most_ < least_)
            least_ = most_ = 1.0; // all capacities are infinite
        top_ = std::clamp(std::ceil(std::max(top_, infinite_.value_or(0.0)) * 10.0 + 0.2) / 10.0, 0.1, 1.0);
    }

    /// Writes the plot. Returns false if the file cannot be written.
    [[nodiscard]] bool write(const std::string& file) const {
        std::ofstream out(file);
        out << svg();
        out.close();
        return !out.fail();
    }

    [[nodiscard]] std::string svg() const {
        std::string text = R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 480" font-family="sans-serif" )"
                           R"(font-size="12" fill="#222">)"
                           "\n<rect width=\"820\" height=\"480\" fill=\"#fff\"/>\n" +
                           label(left, 26.0, "start", title_, " font-size=\"15\"");
        axes(text);
        double key = top_edge + 8.0;
        for (std::size_t i = 0; i < curves_.size(); ++i) {
            if (curves_[i].points.empty())
                continue;
            const bool bound = i + 1 == curves_.size();
            const std::string pen = "fill=\"none\" stroke-width=\"2\" stroke=\"" +
                                    std::string(bound ? "#222" : colours[i % colours.size()]) + "\"" +
                                    (bound                 ? " stroke-dasharray=\"7 4\""
                                     : i >= colours.size() ? " stroke-dasharray=\"3 2\""
                                                           : "");
            text += "<polyline " + pen + " points=\"";
            for (const auto& [x, y] : curves_[i].points)
                text += number(across(x)) + "," + number(down(y)) + " ";
            text += "\"/>\n";
            for (const auto& [x, y] : curves_[i].points)
                text += "<circle r=\"2.5\" cx=\"" + number(across(x)) + "\" cy=\"" + number(down(y)) + "\" fill=\"" +
                        std::string(bound ? "#222" : colours[i % colours.size()]) + "\"/>\n";
            legend(text, key, pen, curves_[i].name);
        }
        if (infinite_) {
            const std::string pen = "stroke-width=\"1.5\" stroke=\"#888\" stroke-dasharray=\"1 3\"";
            text += line(left, down(*infinite_), right, down(*infinite_), pen);
            legend(text, key, pen, "infinite");
        }
        return text + "</svg>\n";
    }

private:
    struct curve {
        std::string name;
        std::vector<std::pair<double, double>> points; // capacity, hit ratio
    };

    static constexpr double left = 64.0, right = 640.0, top_edge = 44.0, bottom = 424.0;
    static constexpr std::array<const char*, 10> colours = {"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee",
                                                            "#aa3377", "#ee7733", "#009988", "#882255", "#999933"};

    [[nodiscard]] double across(double capacity) const {
        return most_ > least_ ? left + (right - left) * std::log(capacity / least_) / std::log(most_ / least_)
                              : (left + right) / 2.0;
    }
    [[nodiscard]] double down(double ratio) const { return bottom - (bottom - top_edge) * ratio / top_; }

    [[nodiscard]] static std::string number(double value) {
        char text[32];
        std::snprintf(text, sizeof text, "%.1f", value);
        return text;
    }

    // Formats "30k" or "1.5M" for blocks, "128Mi" for bytes.
    [[nodiscard]] std::string amount(double value) const {
        const bool bytes = unit_ == "bytes";
        const double step = bytes ? 1024.0 : 1000.0;
        std::size_t power = 0;
        for (; value >= step && power < 4; ++power)
            value /= step;
        char text[32];
        std::snprintf(text, sizeof text, "%.3g", value);
        const std::string_view names = bytes ? "KMGT" : "kMGT";
        return text + (power == 0 ? std::string() : std::string(1, names[power - 1]) + (bytes ? "i" : ""));
    }

    [[nodiscard]] static std::string escaped(std::string_view words) {
        std::string text;
        for (const char c : words)
            text += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
        return text;
    }

    [[nodiscard]] static std::string label(double x, double y, const char* anchor, std::string_view words,
                                           const std::string& more = "") {
        return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
               escaped(words) + "</text>\n";
    }

    [[nodiscard]] static std::string line(double x1, double y1, double x2, double y2, const std::string& pen) {
        return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" +
               number(y2) + "\" " + pen + "/>\n";
    }

    static void legend(std::string& text, double& y, const std::string& pen, const std::string& name) {
        text += line(right + 16.0, y, right + 44.0, y, pen) + label(right + 52.0, y + 4.0, "start", name);
        y += 20.0;
    }

    void axes(std::string& text) const {
        const std::string grid = "stroke=\"#ddd\"", frame = "stroke=\"#222\"";
        const int steps = static_cast<int>(std::lround(top_ * 10.0)) <= 4 ? 20 : 10; // steps per 1.0
        for (int i = 0; i <= static_cast<int>(std::lround(top_ * steps)); ++i) {
            const double ratio = static_cast<double>(i) / steps;
            text += line(left, down(ratio), right, down(ratio), grid);
            char words[16];
            std::snprintf(words, sizeof words, "%.2f", ratio);
            text += label(left - 8.0, down(ratio) + 4.0, "end", words);
        }
        double before = -1e9;
        for (const double x : ticks()) {
            text += line(across(x), top_edge, across(x), bottom, grid);
            if (across(x) - before > 34.0) { // keeps labels from overlapping
                text += label(across(x), bottom + 18.0, "middle", amount(x));
                before = across(x);
            }
        }
        text += line(left, top_edge, left, bottom, frame) + line(left, bottom, right, bottom, frame);
        text += label((left + right) / 2.0, bottom + 42.0, "middle", "capacity, " + unit_);
        text += label(18.0, (top_edge + bottom) / 2.0, "middle", "hit ratio",
                      " transform=\"rotate(-90 18.0 " + number((top_edge + bottom) / 2.0) + ")\"");
    }

    // The finite capacities that were replayed.
    [[nodiscard]] std::vector<double> ticks() const {
        std::vector<double> at;
        for (const auto& [x, y] : curves_.front().points)
            at.push_back(x);
        at.erase(std::unique(at.begin(), at.end()), at.end());
        return at;
    }

    std::string title_, unit_;
    std::vector<curve> curves_; // the clairvoyant bound is last
    std::optional<double> infinite_;
    double least_ = 1e300, most_ = 0.0, top_ = 0.0;
};

} // namespace bench
