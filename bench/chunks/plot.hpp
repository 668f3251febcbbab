// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "arms.hpp"

namespace bench {

/// Returns an SVG plot of the remaining divergence over the recomputed share, one point per strategy.
[[nodiscard]] inline std::string repair_plot(const std::vector<chunk_row>& rows) {
    const auto number = [](double x) {
        char text[32];
        std::snprintf(text, sizeof text, "%.1f", x);
        return std::string(text);
    };
    constexpr double left = 60.0, top = 40.0, width = 560.0, height = 300.0;
    double most = 1.0;
    for (const chunk_row& row : rows)
        most = std::max(most, row.kl / std::max(row.kl_none, 1e-30));
    const auto label = [&](double x, double y, const std::string& words, const std::string& how) {
        return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\"" + how + ">" + words + "</text>\n";
    };
    std::string text =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 400\" font-family=\"sans-serif\" "
        "font-size=\"12\" fill=\"#222\">\n<rect width=\"760\" height=\"400\" fill=\"#fff\"/>\n" +
        label(left, 22.0, "KL divergence left, of that without repair, over the reused tokens that run again",
              " font-size=\"14\"");
    for (int i = 0; i <= 4; ++i) {
        const double share = 0.25 * i, x = left + share * width, y = top + height - share * height;
        text += "<path d=\"M" + number(left) + " " + number(y) + "h" + number(width) + "M" + number(x) + " " +
                number(top) + "v" + number(height) + "\" stroke=\"#ddd\"/>\n";
        text += label(x, top + height + 18.0, number(100.0 * share) + " %", " text-anchor=\"middle\"");
        text += label(left - 6.0, y + 4.0, number(100.0 * share * most) + " %", " text-anchor=\"end\"");
    }
    for (const chunk_row& row : rows) {
        const double x = left + row.recomputed_share * width;
        const double y = top + height - row.kl / std::max(row.kl_none, 1e-30) / most * height;
        text += "<circle cx=\"" + number(x) + "\" cy=\"" + number(y) + "\" r=\"4\" fill=\"#2a6fbb\"/>\n" +
                label(x + 7.0, y + 4.0, row.strategy, "");
    }
    return text + "</svg>\n";
}

/// Writes a text file. Returns false if the file cannot be written.
[[nodiscard]] inline bool write_text(const std::string& file, const std::string& text) {
    std::ofstream out(file);
    out << text;
    out.close();
    return !out.fail();
}

} // namespace bench
