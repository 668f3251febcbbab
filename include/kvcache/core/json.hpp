// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// A JSON value whose objects keep the order of the file.
using json = nlohmann::ordered_json;

/// Parses strict JSON (RFC 8259) as `Json`: UTF-8, one value, no duplicate key, at most 256 levels deep.
/// `name` is what an error calls the text. Cost: O(n log n) for nlohmann::json; quadratic in the keys of one object
/// where objects keep their order.
template <class Json>
KVCACHE_ONCE [[nodiscard]] result<Json> parse_json_as(std::string_view text, std::string name) {
    using event_type = typename Json::parse_event_t;
    std::vector<std::set<std::string>> keys;
    std::string problem;
    struct too_deep {}; // ends the parsing: what is nested deeper costs nothing
    const auto watch = [&](int depth, event_type event, Json& value) {
        constexpr int deepest = 256;
        if (event == event_type::object_start || event == event_type::array_start) {
            if (depth > deepest)
                throw too_deep{};
            keys.emplace_back();
        } else if (event == event_type::object_end || event == event_type::array_end) {
            keys.pop_back();
        } else if (event == event_type::key && !keys.empty()) {
            auto key = value.template get<std::string>();
            if (!keys.back().insert(key).second && problem.empty())
                problem = "has the key \"" + key + "\" twice in one object";
        }
        return true;
    };
    try {
        Json value = Json::parse(text.begin(), text.end(), watch);
        if (!problem.empty())
            return error{error_code::malformed, std::move(name), "the JSON text " + problem};
        return value;
    } catch (const typename Json::exception& e) {
        return error{error_code::malformed, std::move(name), e.what()};
    } catch (const too_deep&) {
        return error{error_code::malformed, std::move(name), "the JSON text is nested more than 256 levels deep"};
    }
}

#if KVCACHE_COMPILED
extern template result<json> parse_json_as(std::string_view, std::string);
extern template result<nlohmann::json> parse_json_as(std::string_view, std::string);
#endif

/// Parses strict JSON whose objects keep the order of the text.
[[nodiscard]] inline result<json> parse_json(std::string_view text, std::string name) {
    return parse_json_as<json>(text, std::move(name));
}

/// Reads the bytes of a whole file, at most `limit` of them.
[[nodiscard]] inline result<std::string> read_file(const std::filesystem::path& file, std::size_t limit) {
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
    std::string bytes(static_cast<std::size_t>(size), '\0');
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (static_cast<std::size_t>(in.gcount()) != bytes.size())
        return error{error_code::truncated, file.filename().string(),
                     file.string() + " ends before its " + std::to_string(size) + " bytes"};
    return bytes;
}

/// Reads a whole JSON file, of at most `limit` bytes.
[[nodiscard]] inline result<json> read_json(const std::filesystem::path& file, std::size_t limit = 256u << 20) {
    const auto text = read_file(file, limit);
    if (!text)
        return text.error();
    return parse_json(*text, file.filename().string());
}

} // namespace kvcache::inline KVCACHE_ABI
