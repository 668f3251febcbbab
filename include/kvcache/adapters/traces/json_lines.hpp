// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/traces/line_reader.hpp>
#include <kvcache/core/json.hpp>
#include <kvcache/core/result.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The JSON values of a source with one value per line; blank lines are skipped. Memory: the longest line, parsed.
class json_lines {
public:
    explicit json_lines(byte_source source) : lines_(std::move(source)) {}

    /// Reads the next value. Returns: false at the end. Errors: those of the source; malformed, for invalid JSON,
    /// with file and line.
    [[nodiscard]] result<bool> next(nlohmann::json& value) {
        std::string_view line;
        do {
            const auto more = lines_.next(line);
            if (!more || !*more)
                return more;
        } while (line.find_first_not_of(" \t") == std::string_view::npos);
        auto parsed = parse_json_as<nlohmann::json>(line, lines_.source().name());
        if (!parsed)
            return lines_.failure(parsed.error().code, parsed.error().message);
        value = *std::move(parsed);
        return true;
    }

    /// Returns the position of the last value read, for errors.
    [[nodiscard]] std::string where() const {
        return lines_.source().name() + ", line " + std::to_string(lines_.number());
    }

    [[nodiscard]] const byte_source& source() const noexcept { return lines_.source(); }

private:
    line_reader lines_;
};

}} // namespace kvcache
