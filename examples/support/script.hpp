// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace support {

/// The user messages of a conversation to replay.
struct script {
    std::string system = {}; ///< The system prompt; empty for none.
    std::vector<std::string> turns = {};
};

/// Reads a script: JSON {"system": "...", "turns": ["...", ...]} from a file that ends in .json, otherwise plain text
/// with one turn per line. Errors: not_found, malformed.
inline kvcache::result<script> read_script(const std::filesystem::path& file) {
    using kvcache::error;
    using kvcache::error_code;
    script read;
    if (file.extension() == ".json") {
        const auto document = kvcache::read_json(file);
        if (!document)
            return document.error();
        const auto& whole = *document;
        if (!whole.is_object() || !whole.contains("turns") || !whole["turns"].is_array())
            return error{error_code::malformed, "turns",
                         file.string() + ": an object with the list \"turns\" is needed"};
        if (whole.contains("system")) {
            if (!whole["system"].is_string())
                return error{error_code::malformed, "system", file.string() + ": \"system\" is a text"};
            read.system = whole["system"].get<std::string>();
        }
        for (const auto& turn : whole["turns"]) {
            if (!turn.is_string())
                return error{error_code::malformed, "turns", file.string() + ": each of \"turns\" is a text"};
            read.turns.push_back(turn.get<std::string>());
        }
    } else {
        constexpr std::size_t longest = 16u << 20;
        const auto text = kvcache::read_file(file, longest);
        if (!text)
            return text.error();
        std::istringstream lines(*text);
        for (std::string line; std::getline(lines, line);) {
            if (line.ends_with('\r'))
                line.pop_back();
            if (!line.empty())
                read.turns.push_back(std::move(line));
        }
    }
    if (read.turns.empty())
        return error{error_code::malformed, "turns", file.string() + " holds no turn"};
    return read;
}

} // namespace support
