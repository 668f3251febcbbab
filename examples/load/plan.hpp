// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/session/sampler.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace load {

/// A length, drawn for every text from a normal distribution and clamped to at least 1.
struct length {
    std::size_t mean = 1;
    double deviation = 0.0;
};

/// A stage of a run, with its own load.
struct stage {
    double rate = 0.0;          ///< Requests per second; 0 for as many as the workers can send.
    std::size_t workers = 4;    ///< Maximum concurrent requests; a session belongs to one worker.
    std::size_t requests = 100; ///< Requests in this stage.
    std::size_t first = 0;      ///< Requests in the stages before.
};

/// Parses "RATE:SECONDS", or "xWORKERS:REQUESTS" for as many requests as these workers can send. None if it is
/// neither.
[[nodiscard]] inline std::optional<stage> stage_of(std::string_view text, std::size_t workers) {
    const bool counted = text.starts_with('x');
    text.remove_prefix(counted ? 1 : 0);
    const auto colon = text.find(':');
    if (colon == std::string_view::npos)
        return std::nullopt;
    const auto number = [](std::string_view of) {
        double value = 0.0;
        const auto [end, fault] = std::from_chars(of.data(), of.data() + of.size(), value);
        const bool good = fault == std::errc() && end == of.data() + of.size() && value > 0.0 && value < 1e7;
        return good ? std::optional(value) : std::nullopt;
    };
    const auto one = number(text.substr(0, colon)), other = number(text.substr(colon + 1));
    if (!one || !other || (counted && (*one < 1.0 || *one > 4096.0 || *other < 1.0)))
        return std::nullopt;
    if (counted)
        return stage{.workers = static_cast<std::size_t>(*one), .requests = static_cast<std::size_t>(*other)};
    const auto requests = static_cast<std::size_t>(std::ceil(*one * *other));
    return stage{.rate = *one, .workers = workers, .requests = requests};
}

/// The workload: users in groups, each group with its own system prompt.
struct plan {
    std::size_t groups = 2;
    std::size_t users = 10; ///< Users per group.
    length system = {.mean = 100};
    length question = {.mean = 50};
    length output = {.mean = 50};
    bool multi_turn = false; ///< The context of a user grows with its questions and answers.
    std::size_t context = 0; ///< Maximum tokens of a prompt and its answer, for which old turns are dropped; 0: any.
    std::uint64_t seed = 0;
    bool poisson = false;

    /// The purpose of a random number.
    enum class purpose : std::uint64_t { system = 1, question, system_length, question_length, output_length, arrival };

    [[nodiscard]] std::size_t sessions() const { return groups * users; }
    /// Returns the user of request `i`; the requests of one user are spread evenly.
    [[nodiscard]] std::size_t session_of(std::size_t i) const { return i % sessions(); }

    [[nodiscard]] std::string system_of(std::size_t session) const {
        const std::size_t group = session / users;
        return words(draw(system, purpose::system_length, group), purpose::system, group);
    }
    [[nodiscard]] std::string question_of(std::size_t i) const {
        return words(draw(question, purpose::question_length, i), purpose::question, i);
    }
    [[nodiscard]] std::size_t output_of(std::size_t i) const { return draw(output, purpose::output_length, i); }

    /// Returns the due times of a stage's requests, in seconds: equally spaced, or the arrivals of a Poisson process.
    [[nodiscard]] std::vector<double> schedule(const stage& of) const {
        std::vector<double> due(of.requests, 0.0);
        const auto random = dice(purpose::arrival, of.first);
        for (std::size_t i = 1; i < of.requests && of.rate > 0.0; ++i)
            due[i] = due[i - 1] + (poisson ? -std::log(1.0 - random.uniform(i)) : 1.0) / of.rate;
        return due;
    }

private:
    // Random numbers depend on purpose and index only, not on the number of draws before.
    [[nodiscard]] kvcache::sampler dice(purpose what, std::uint64_t which) const {
        return {.seed = seed ^ (static_cast<std::uint64_t>(what) << 32), .choice = which};
    }

    // Box & Muller 1958.
    [[nodiscard]] std::size_t draw(const length& of, purpose what, std::uint64_t which) const {
        const auto random = dice(what, which);
        const double normal =
            std::sqrt(-2.0 * std::log(1.0 - random.uniform(0))) * std::cos(2.0 * std::numbers::pi * random.uniform(1));
        return static_cast<std::size_t>(
            std::max(1.0, std::round(static_cast<double>(of.mean) + of.deviation * normal)));
    }

    [[nodiscard]] std::string words(std::size_t n, purpose what, std::uint64_t which) const {
        static constexpr const char* syllables[] = {"ka", "lo", "mi", "ne", "ru", "sa", "te", "vi", "wo", "zu"};
        const auto random = dice(what, which);
        std::string made;
        for (std::size_t i = 0; i < n; ++i) {
            auto number = static_cast<std::size_t>(random.uniform(i) * 1000.0);
            made += made.empty() ? "" : " ";
            for (int syllable = 0; syllable < 3; ++syllable, number /= 10)
                made += syllables[number % 10];
        }
        return made;
    }
};

} // namespace load
