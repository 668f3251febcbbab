// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "measured.hpp"

namespace load {

using kvcache::json;

/// The longest times of a good request, in seconds, by inference-perf's names: ttft, tpot, ntpot, request_latency.
using goodput_constraints = std::map<std::string, double>;

/// Returns a time of a request by its name; none if the request lacks it, as one with a single token lacks tpot, or if
/// the name is unknown.
[[nodiscard]] inline std::optional<double> time_of(const measured& one, std::string_view name) {
    const double whole = one.ended - one.sent;
    const auto tokens = static_cast<double>(one.output_tokens);
    if (name == "request_latency")
        return whole;
    if (name == "ntpot" && one.output_tokens > 0)
        return whole / tokens;
    if (name == "ttft" && !one.tokens.empty())
        return one.tokens.front() - one.sent;
    if (name == "tpot" && !one.tokens.empty() && one.output_tokens > 1)
        return (one.tokens.back() - one.tokens.front()) / (tokens - 1.0);
    return std::nullopt;
}

/// Parses "NAME:SECONDS" into a constraint. Returns false if it is none.
[[nodiscard]] inline bool read_constraint(std::string_view text, goodput_constraints& to) {
    const auto colon = text.find(':');
    if (colon == std::string_view::npos)
        return false;
    const std::string name(text.substr(0, colon));
    const std::string_view number = text.substr(colon + 1);
    double seconds = 0.0;
    const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), seconds);
    const bool known = name == "ttft" || name == "tpot" || name == "ntpot" || name == "request_latency";
    if (!known || fault != std::errc() || end != number.data() + number.size() || !(seconds > 0.0))
        return false;
    to[name] = seconds;
    return true;
}

/// Returns which of the successful requests met all constraints, under inference-perf's names; a run took `seconds`. A
/// time that a request lacks meets its constraint.
[[nodiscard]] inline json goodput(const std::vector<measured>& all, const goodput_constraints& most, double seconds) {
    std::size_t total = 0, good = 0;
    double tokens = 0.0;
    std::map<std::string, std::size_t> met;
    for (const measured& one : all) {
        if (!one.failure.empty())
            continue;
        ++total;
        bool meets_all = true;
        for (const auto& [name, limit] : most) {
            const bool meets = time_of(one, name).value_or(0.0) <= limit;
            met[name] += meets ? 1 : 0;
            meets_all = meets_all && meets;
        }
        good += meets_all ? 1 : 0;
        tokens += meets_all ? static_cast<double>(one.prompt_tokens + one.output_tokens) : 0.0;
    }
    const auto percentage = [&](std::size_t of) {
        return total == 0 ? json() : json(100.0 * static_cast<double>(of) / static_cast<double>(total));
    };
    json made{{"good_requests", good},
              {"total_requests", total},
              {"goodput_percentage", percentage(good)},
              {"request_goodput", static_cast<double>(good) / seconds},
              {"token_goodput", tokens / seconds},
              {"constraints", most}};
    for (const auto& [name, limit] : most)
        made[name + "_attainment_percentage"] = percentage(met[name]);
    return made;
}

} // namespace load
