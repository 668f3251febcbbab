// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "guarded.hpp"
#include "model_directory.hpp"
#include <CLI/CLI.hpp>

namespace support {

/// Parses the whole text as a decimal number; none if it is not one, or does not fit.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
    Number value{};
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    return fault == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// Validates an integer from `least` to `most`.
inline CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
    return CLI::Validator(
        [=](std::string& text) {
            const auto value = number_in<std::uint64_t>(text);
            return value && *value >= least && *value <= most
                       ? std::string()
                       : "\"" + text + "\" is not an integer from " + std::to_string(least) + " to " +
                             std::to_string(most);
        },
        "INT");
}
inline CLI::Validator whole() {
    return whole(0, std::numeric_limits<std::uint64_t>::max());
}

/// Validates a page size.
inline CLI::Validator page_size() {
    return CLI::Validator(
        [](std::string& text) {
            const auto value = number_in<std::uint32_t>(text);
            return value && *value >= 16 && *value <= 65536 && *value % 16 == 0
                       ? std::string()
                       : "\"" + text + "\" is not a multiple of 16 up to 65536";
        },
        "INT");
}

/// Validates a temperature.
inline CLI::Validator temperature() {
    return CLI::Validator(
        [](std::string& text) {
            const auto value = number_in<float>(text);
            return value && std::isfinite(*value) && *value >= 0.0f && *value <= 100.0f
                       ? std::string()
                       : "\"" + text + "\" is not a number from 0 to 100";
        },
        "FLOAT");
}

/// The flags of every program that generates tokens.
struct generation_flags {
    std::size_t max_tokens = 64;
    float temperature = 0.0f;
    std::uint64_t seed = 0;
    std::size_t threads = 1;
    std::size_t max_batch_tokens = 256;
    std::uint32_t page = 64;
    bool packed_cache = false;
    bool int8 = false;
};

inline void add_flags(CLI::App& app, generation_flags& f) {
    app.add_option("--max-tokens", f.max_tokens, "Longest answer")->check(whole())->capture_default_str();
    app.add_option("--temperature", f.temperature, "0: the likeliest token")
        ->check(temperature())
        ->capture_default_str();
    app.add_option("--seed", f.seed, "Of the draws")->check(whole())->capture_default_str();
    app.add_option("--threads", f.threads)->check(whole(1, 1024))->capture_default_str();
    app.add_option("--max-batch-tokens", f.max_batch_tokens, "Most rows in one forward pass")
        ->check(whole(1, 1u << 20))
        ->capture_default_str();
    app.add_flag("--packed-cache", f.packed_cache, "Keep the packed weights next to the model for the next start");
    app.add_flag("--int8", f.int8,
                 "Compute in int8, with float weights and all activations rounded: faster, and approximate");
    app.add_option("--page", f.page, "Tokens a page, a multiple of 16")->check(page_size())->capture_default_str();
}

/// Parses token ids such as "1,2,3". Errors: malformed, for anything but decimal numbers separated by commas.
inline kvcache::result<std::vector<kvcache::token_id>> read_ids(std::string_view flag, std::string_view text) {
    std::vector<kvcache::token_id> ids;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        const auto id = number_in<std::int32_t>(text.substr(begin, end - begin));
        if (!id)
            return kvcache::error{kvcache::error_code::malformed, std::string(flag),
                                  std::string(flag) + " takes decimal numbers with commas between, as 1,2,3; \"" +
                                      std::string(text.substr(begin, end - begin)) + "\" is none"};
        ids.push_back(kvcache::token_id{*id});
        begin = end + 1;
    }
    return ids;
}

/// Parses the command line and runs the program. Reports every error, with exit status 1.
template <class Run>
int guarded(const char* program, CLI::App& app, int argc, char** argv, Run run) {
    return guarded(program, [&] {
        try {
            app.parse(argc, argv);
        } catch (const CLI::ParseError& fault) {
            return app.exit(fault) == 0 ? 0 : 1;
        }
        return run();
    });
}

} // namespace support
