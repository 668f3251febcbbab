// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvcache {

/// A JSON value whose objects keep the order of the file.
using json = nlohmann::ordered_json;

/// Parses strict JSON (RFC 8259): UTF-8, one value, no duplicate key, at most 256 levels deep.
/// `name` is what an error calls the text. Cost: O(n log n).
[[nodiscard]] inline result<json> parse_json(std::string_view text, std::string name) {
    std::vector<std::set<std::string>> keys;
    std::string problem;
    const auto watch = [&](int depth, json::parse_event_t event, json& value) {
        constexpr int deepest = 256;
        if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
            if (depth > deepest && problem.empty())
                problem = "is nested more than 256 levels deep";
            keys.emplace_back();
        } else if (event == json::parse_event_t::object_end || event == json::parse_event_t::array_end) {
            keys.pop_back();
        } else if (event == json::parse_event_t::key && !keys.empty()) {
            auto key = value.get<std::string>();
            if (!keys.back().insert(key).second && problem.empty())
                problem = "has the key \"" + key + "\" twice in one object";
        }
        return true;
    };
    try {
        json value = json::parse(text.begin(), text.end(), watch);
        if (!problem.empty())
            return error{error_code::malformed, std::move(name), "the JSON text " + problem};
        return value;
    } catch (const json::exception& e) {
        return error{error_code::malformed, std::move(name), e.what()};
    }
}

/// Reads a whole JSON file, of at most `limit` bytes.
[[nodiscard]] inline result<json> read_json(const std::filesystem::path& file, std::size_t limit = 256u << 20) {
    std::error_code failed;
    const auto size = std::filesystem::file_size(file, failed);
    if (failed)
        return error{error_code::not_found, file.filename().string(), file.string() + ": " + failed.message()};
    if (size > limit)
        return error{error_code::out_of_range, file.filename().string(),
                     file.string() + " has " + std::to_string(size) + " bytes; at most " + std::to_string(limit) +
                         " are read"};
    std::ifstream in(file, std::ios::binary);
    if (!in)
        return error{error_code::io, file.filename().string(), file.string() + " cannot be opened"};
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    return parse_json(text, file.filename().string());
}

} // namespace kvcache
