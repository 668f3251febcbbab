// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Text in Prometheus' exposition format, version 0.0.4: each metric has its help, its type and one sample.
class exposition {
public:
    /// Label names and values. A name consists of letters, digits and underscores; it begins neither with a digit nor
    /// with "__".
    using labels = std::vector<std::pair<std::string, std::string>>;

    explicit exposition(const labels& on_every_sample) {
        for (const auto& [name, value] : on_every_sample) {
            expects(is_name(name), "a label's name has letters, digits and underscores");
            labels_ += (labels_.empty() ? "" : ",") + name + "=\"" + escaped(value, true) + '"';
        }
        if (!labels_.empty())
            labels_ = "{" + labels_ + "}";
    }

    /// Adds a counter, whose value only grows.
    void counter(std::string_view name, std::string_view help, std::integral auto value) {
        sample(name, help, "counter", std::to_string(value));
    }
    /// Adds a gauge, whose value may rise and fall.
    void gauge(std::string_view name, std::string_view help, std::integral auto value) {
        sample(name, help, "gauge", std::to_string(value));
    }
    void gauge(std::string_view name, std::string_view help, double value) {
        sample(name, help, "gauge", number(value));
    }

    [[nodiscard]] const std::string& text() const& noexcept { return text_; }
    [[nodiscard]] std::string text() && noexcept { return std::move(text_); }

    /// Escapes backslashes and newlines, and quotes inside a quoted text.
    [[nodiscard]] static std::string escaped(std::string_view words, bool in_quotes) {
        std::string made;
        for (const char c : words)
            if (c == '\\' || (c == '"' && in_quotes))
                made.append({'\\', c});
            else if (c == '\n')
                made += "\\n";
            else
                made += c;
        return made;
    }

private:
    [[nodiscard]] static bool is_name(std::string_view name) {
        const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
        return !name.empty() && letter(name.front()) && !name.starts_with("__") &&
               std::ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
    }

    [[nodiscard]] static std::string number(double value) {
        if (std::isnan(value))
            return "NaN";
        if (std::isinf(value))
            return value > 0 ? "+Inf" : "-Inf";
        char digits[32];
        return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
    }

    void sample(std::string_view name, std::string_view help, std::string_view type, const std::string& value) {
        text_.append("# HELP ").append(name).append(" ").append(escaped(help, false)).append("\n# TYPE ");
        text_.append(name).append(" ").append(type).append("\n");
        text_.append(name).append(labels_).append(" ").append(value).append("\n");
    }

    std::string labels_;
    std::string text_;
};

}}} // namespace kvcache::observer
