// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A JSON value whose objects keep the order of the file.
using json = nlohmann::ordered_json;

namespace detail {

/// The receiver of JSON parse events. Each handler returns whether to continue.
using json_events = nlohmann::json_sax<json>;

/// Parses strict JSON (RFC 8259) into events. Returns: whether the text is exactly one value and `to` accepted every
/// event.
KVCACHE_LAZY bool tell_json(std::string_view text, json_events& to) {
    // Equivalent to json::sax_parse, without compiling its readers of binary formats.
    auto from = nlohmann::detail::input_adapter(text.data(), text.data() + text.size());
    // NOLINTNEXTLINE(performance-move-const-arg): the parser takes an rvalue
    return nlohmann::detail::parser<json, decltype(from)>(std::move(from)).sax_parse(&to);
}

/// Builds a value and keeps the first error.
template <class Json>
class json_builder final : public json_events {
public:
    [[nodiscard]] result<Json> build(std::string_view text, std::string name) {
        if (text.find('\0') != text.npos) // nlohmann/json takes it for the end of the text
            return error{error_code::malformed, std::move(name), "the JSON text has a zero byte"};
        if (tell_json(text, *this) && problem_.empty())
            return std::move(root_);
        return error{error_code::malformed, std::move(name), std::move(refusal_.empty() ? problem_ : refusal_)};
    }

    bool null() override { return add(nullptr) != nullptr; }
    bool boolean(bool value) override { return add(value) != nullptr; }
    bool number_integer(std::int64_t value) override { return add(value) != nullptr; }
    bool number_unsigned(std::uint64_t value) override { return add(value) != nullptr; }
    bool number_float(double value, const std::string&) override { return add(value) != nullptr; }
    bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
    bool binary(json::binary_t&) override { return false; }
    bool start_object(std::size_t) override { return open(Json::value_t::object); }
    bool start_array(std::size_t) override { return open(Json::value_t::array); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(std::string& name) override {
        const bool added = add_member(object(), name);
        if (!added && problem_.empty())
            problem_ = joined({"the JSON text has the key \"", name, "\" twice in one object"});
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const json::exception& reason) override {
        refusal_ = reason.what();
        return false;
    }

private:
    [[nodiscard]] typename Json::object_t& object() {
        return open_.back()->template get_ref<typename Json::object_t&>();
    }
    /// Adds a member without a value, which follows. Returns whether its key is new.
    [[nodiscard]] bool add_member(typename Json::object_t& members, const std::string& name) {
        if constexpr (requires { members.emplace_back(name, nullptr); }) { // its own emplace compares with every key
            constexpr std::size_t few = 32;
            auto& seen = keys_.back();
            if (members.size() == few)
                for (const auto& member : members)
                    seen.insert(member.first);
            const bool added = members.size() < few ? members.find(name) == members.end() : seen.insert(name).second;
            members.emplace_back(name, nullptr);
            member_ = &members.back().second;
            return added;
        } else {
            const auto [at, added] = members.emplace(name, nullptr);
            member_ = &at->second;
            return added;
        }
    }
    Json* add(Json value) {
        if (!open_.empty() && open_.back()->is_array()) {
            auto& items = open_.back()->template get_ref<typename Json::array_t&>();
            return &items.emplace_back(std::move(value));
        }
        Json* const at = open_.empty() ? &root_ : member_;
        *at = std::move(value);
        return at;
    }
    bool open(typename Json::value_t type) {
        constexpr std::size_t deepest = 256; // rejecting deeper nesting costs nothing
        if (open_.size() > deepest) {
            refusal_ = "the JSON text is nested more than 256 levels deep";
            return false;
        }
        open_.push_back(add(type));
        keys_.emplace_back();
        return true;
    }
    bool close() {
        open_.pop_back();
        keys_.pop_back();
        return true;
    }

    Json root_;
    std::vector<Json*> open_;
    std::vector<std::unordered_set<std::string>> keys_; // by open value: the keys of an object of many members
    Json* member_ = nullptr;
    std::string problem_; // duplicate key; a later syntax error takes precedence
    std::string refusal_;
};

} // namespace detail

/// Parses strict JSON (RFC 8259) as `Json`: UTF-8, one value, no duplicate key, at most 256 levels deep. `name` is the
/// name of the text in errors. Cost: O(n log n).
template <class Json>
[[nodiscard]] result<Json> parse_json_as(std::string_view text, std::string name) {
    return detail::json_builder<Json>().build(text, std::move(name));
}

/// Serializes a value as ASCII, with invalid UTF-8 replaced by U+FFFD.
KVCACHE_LAZY [[nodiscard]] std::string json_text(const json& value) {
    return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

/// Parses strict JSON whose objects keep the order of the text.
KVCACHE_LAZY [[nodiscard]] result<json> parse_json(std::string_view text, std::string name) {
    return parse_json_as<json>(text, std::move(name));
}

/// Reads a whole file of at most `limit` bytes.
KVCACHE_LAZY [[nodiscard]] result<std::string> read_file(const std::filesystem::path& file, std::size_t limit) {
    std::error_code failed;
    const auto size = std::filesystem::file_size(file, failed);
    if (failed)
        return error{error_code::not_found, file.filename().string(),
                     detail::joined({file.string(), ": ", failed.message()})};
    if (size > limit)
        return error{error_code::out_of_range, file.filename().string(),
                     detail::joined({file.string(), " has ", std::to_string(size), " bytes; at most ",
                                     std::to_string(limit), " are read"})};
    std::ifstream in(file, std::ios::binary);
    if (!in)
        return error{error_code::io, file.filename().string(), file.string() + " cannot be opened"};
    std::string bytes(static_cast<std::size_t>(size), '\0');
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (static_cast<std::size_t>(in.gcount()) != bytes.size())
        return error{error_code::truncated, file.filename().string(),
                     detail::joined({file.string(), " ends before its ", std::to_string(size), " bytes"})};
    return bytes;
}

/// Reads a whole JSON file, of at most `limit` bytes.
KVCACHE_LAZY [[nodiscard]] result<json> read_json(const std::filesystem::path& file, std::size_t limit = 256u << 20) {
    const auto text = read_file(file, limit);
    if (!text)
        return text.error();
    return parse_json(*text, file.filename().string());
}

#if KVCACHE_COMPILED
extern template bool detail::tell_json(std::string_view, detail::json_events&);
extern template result<json> parse_json_as(std::string_view, std::string);
extern template result<nlohmann::json> parse_json_as(std::string_view, std::string);
extern template std::string json_text(const json&);
extern template result<std::string> read_file(const std::filesystem::path&, std::size_t);
#endif

}} // namespace kvcache
