// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

namespace support {

/// A bar chart with two bars per group.
struct bar_pairs {
    std::string title;
    std::string command; ///< The command that produced it, printed below the chart.
    std::string first;   ///< Label of the first bar of each pair.
    std::string second;
    std::vector<double> firsts = {};
    std::vector<double> seconds = {};
};

/// The distance of the marks of an axis from zero to `most`: 1, 2 or 5 times a power of ten, for 3 to 7 marks.
inline double axis_step(double most) {
    const double tenth = std::pow(10.0, std::floor(std::log10(most / 3)));
    for (const double times : {5.0, 2.0})
        if (times * tenth * 3 <= most)
            return times * tenth;
    return tenth;
}

/// Writes the chart as SVG. Returns whether the file was written.
inline bool write_svg(const std::string& file, const bar_pairs& bars) {
    constexpr double width = 640, left = 56, bottom = 200, top = 44, line = 14;
    std::vector<std::string> command{""}; // in lines that fit
    std::istringstream words(bars.command);
    for (std::string word; words >> word;)
        if (command.back().size() + word.size() < 90)
            command.back() += (command.back().empty() ? "" : " ") + word;
        else
            command.push_back(word);
    const double height = bottom + 46 + line * static_cast<double>(command.size());
    double most = 1e-9;
    for (const auto& series : {bars.firsts, bars.seconds})
        for (const double x : series)
            most = std::max(most, x);
    const double mark = axis_step(most), marks = std::ceil(most / mark);
    const auto height_of = [&](double value) { return (bottom - top) * value / (marks * mark); };
    std::ofstream out(file);
    out << std::fixed << std::setprecision(1);
    out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height
        << "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        << "<text x=\"" << left << "\" y=\"20\" font-size=\"14\">" << bars.title << "</text>\n";
    const auto rect = [&](double x, double value, double wide, const char* colour) {
        const double tall = height_of(value);
        out << "<rect x=\"" << x << "\" y=\"" << bottom - tall << "\" width=\"" << wide << "\" height=\"" << tall
            << "\" fill=\"" << colour << "\"/>\n";
    };
    for (double i = 0; i <= marks; ++i) {
        std::ostringstream label; // an integer without a point
        label << i * mark;
        const double y = bottom - height_of(i * mark);
        out << "<line x1=\"" << left << "\" y1=\"" << y << "\" x2=\"" << width - 16 << "\" y2=\"" << y
            << "\" stroke=\"#e0e0e0\"/>\n<text x=\"" << left - 6 << "\" y=\"" << y + 4 << "\" text-anchor=\"end\">"
            << label.str() << "</text>\n";
    }
    const double step = (width - left - 16) / static_cast<double>(std::max<std::size_t>(1, bars.firsts.size()));
    for (std::size_t i = 0; i < bars.firsts.size(); ++i) {
        const double x = left + step * (static_cast<double>(i) + 0.15);
        rect(x, bars.firsts[i], step * 0.33, "#b0b0b0");
        rect(x + step * 0.35, bars.seconds[i], step * 0.33, "#1f77b4");
        out << "<text x=\"" << x + step * 0.3 << "\" y=\"" << bottom + 16 << "\" text-anchor=\"middle\">" << i + 1
            << "</text>\n";
    }
    out << "<rect x=\"" << left << "\" y=\"28\" width=\"10\" height=\"10\" fill=\"#b0b0b0\"/><text x=\"" << left + 14
        << "\" y=\"37\">" << bars.first << "</text>\n<rect x=\"" << left + 150
        << "\" y=\"28\" width=\"10\" height=\"10\" fill=\"#1f77b4\"/><text x=\"" << left + 164 << "\" y=\"37\">"
        << bars.second << "</text>\n";
    for (std::size_t i = 0; i < command.size(); ++i)
        out << "<text x=\"" << left << "\" y=\"" << bottom + 46 + line * static_cast<double>(i)
            << "\" fill=\"#606060\">" << command[i] << "</text>\n";
    out << "</svg>\n";
    return out.flush().good();
}

} // namespace support
