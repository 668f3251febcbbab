// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace bench {

/// A capacity as given on the command line: a number of blocks or bytes, or infinite.
struct capacity {
    std::string words;
    std::optional<std::uint64_t> units; ///< nullopt: infinite.
};

/// Parses "10000", "10k", "512MiB" or "infinite". Throws: runtime_error that quotes the invalid text.
[[nodiscard]] inline capacity parse_capacity(const std::string& words) {
    if (words == "infinite")
        return {words, std::nullopt};
    std::uint64_t number = 0;
    const auto [end, failed] = std::from_chars(words.data(), words.data() + words.size(), number);
    const std::string_view unit(end, static_cast<std::size_t>(words.data() + words.size() - end));
    constexpr std::pair<std::string_view, std::uint64_t> units[] = {
        {"", 1},          {"k", 1000},      {"M", 1000000},   {"G", 1000000000},
        {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", std::uint64_t{1} << 40}};
    for (const auto& [name, factor] : units)
        if (failed == std::errc{} && unit == name && number > 0 && number <= (std::uint64_t{1} << 60) / factor)
            return {words, number * factor};
    throw std::runtime_error("--capacity: \"" + words +
                             "\" is neither \"infinite\" nor a number such as 10000, 10k or 512MiB");
}

} // namespace bench
