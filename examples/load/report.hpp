// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/json.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "goodput.hpp"
#include "measured.hpp"

namespace load {

using kvcache::json;

/// Returns mean, minimum, maximum and percentiles, under inference-perf's names; null for no values.
[[nodiscard]] inline json summary(std::vector<double> of) {
    if (of.empty())
        return nullptr;
    std::ranges::sort(of);
    double total = 0.0;
    for (const double x : of)
        total += x;
    // Interpolates linearly between the two nearest values.
    const auto at = [&](double percent) {
        const double place = percent / 100.0 * static_cast<double>(of.size() - 1);
        const auto below = static_cast<std::size_t>(place);
        const double share = place - static_cast<double>(below);
        return of[below] + share * (of[std::min(below + 1, of.size() - 1)] - of[below]);
    };
    return {{"mean", total / static_cast<double>(of.size())},
            {"min", of.front()},
            {"p0.1", at(0.1)},
            {"p1", at(1)},
            {"p5", at(5)},
            {"p10", at(10)},
            {"p25", at(25)},
            {"median", at(50)},
            {"p75", at(75)},
            {"p90", at(90)},
            {"p95", at(95)},
            {"p99", at(99)},
            {"p99.9", at(99.9)},
            {"max", of.back()}};
}

/// Returns the measurements of a run, with its goodput if there are constraints. A request with fewer than two tokens
/// has no inter-token time; a failed request has no times.
[[nodiscard]] inline json report(const std::vector<measured>& all, const goodput_constraints& most) {
    std::vector<double> latency, first, each, normalised, between, delay, prompt, output;
    std::map<std::string, std::size_t> failures;
    std::map<std::size_t, std::pair<double, double>> hits; // cached and prompt tokens, by session
    double begin = 0.0, end = 0.0;
    for (const measured& one : all) {
        delay.push_back(one.sent - one.due);
        begin = &one == all.data() ? one.sent : std::min(begin, one.sent);
        end = std::max(end, one.ended);
        if (!one.failure.empty()) {
            ++failures[one.failure];
            continue;
        }
        latency.push_back(one.ended - one.sent);
        prompt.push_back(static_cast<double>(one.prompt_tokens));
        output.push_back(static_cast<double>(one.output_tokens));
        hits[one.session].first += static_cast<double>(one.cached_tokens);
        hits[one.session].second += static_cast<double>(one.prompt_tokens);
        if (one.output_tokens > 0)
            normalised.push_back((one.ended - one.sent) / static_cast<double>(one.output_tokens));
        if (one.tokens.empty())
            continue;
        first.push_back(one.tokens.front() - one.sent);
        if (one.output_tokens > 1)
            each.push_back((one.tokens.back() - one.tokens.front()) / static_cast<double>(one.output_tokens - 1));
        for (std::size_t i = 1; i < one.tokens.size(); ++i)
            between.push_back(one.tokens[i] - one.tokens[i - 1]);
    }
    double prompts = 0.0, outputs = 0.0, cached = 0.0;
    std::vector<double> by_session;
    for (const auto& [session, hit] : hits) {
        cached += hit.first;
        prompts += hit.second;
        if (hit.second > 0.0)
            by_session.push_back(100.0 * hit.first / hit.second);
    }
    for (const double n : output)
        outputs += n;
    const double seconds = std::max(end - begin, 1e-9);
    json labels = json::object();
    for (const auto& [label, count] : failures)
        labels[label] = count;
    json made{{"load_summary", {{"count", all.size()}, {"schedule_delay", summary(delay)}}},
              {"successes",
               {{"count", latency.size()},
                {"latency",
                 {{"request_latency", summary(latency)},
                  {"normalized_time_per_output_token", summary(normalised)},
                  {"time_per_output_token", summary(each)},
                  {"time_to_first_token", summary(first)},
                  {"inter_token_latency", summary(between)}}},
                {"throughput",
                 {{"input_tokens_per_sec", prompts / seconds},
                  {"output_tokens_per_sec", outputs / seconds},
                  {"total_tokens_per_sec", (prompts + outputs) / seconds},
                  {"requests_per_sec", static_cast<double>(latency.size()) / seconds}}},
                {"prompt_len", summary(prompt)},
                {"output_len", summary(output)},
                {"kv_cache_hit_percent", prompts > 0.0 ? json(100.0 * cached / prompts) : json()},
                {"session_kv_cache_hit_percent", summary(by_session)}}},
              {"failures", {{"count", all.size() - latency.size()}, {"by_label", std::move(labels)}}}};
    if (!most.empty())
        made["successes"]["goodput_metrics"] = goodput(all, most, seconds);
    return made;
}

/// Returns the times to first token by turn index, in seconds.
[[nodiscard]] inline json by_turn(const std::vector<measured>& all) {
    std::map<std::size_t, std::vector<double>> first;
    for (const measured& one : all)
        if (one.failure.empty() && !one.tokens.empty())
            first[one.turn].push_back(one.tokens.front() - one.sent);
    json made = json::array();
    for (auto& [turn, times] : first)
        made.push_back({{"turn", turn}, {"count", times.size()}, {"time_to_first_token", summary(std::move(times))}});
    return made;
}

} // namespace load
