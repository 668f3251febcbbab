// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "byte_source.hpp"

namespace bench {

/// The JSON values of a source with one value per line; blank lines are skipped. Memory: the longest line, parsed.
class json_lines {
public:
    explicit json_lines(byte_source source) : lines_(std::move(source)) {}

    /// Reads the next value. Returns: false at the end. Errors: those of the source; malformed, for invalid JSON,
    /// with file and line.
    [[nodiscard]] kvcache::result<bool> next(nlohmann::json& value) {
        std::string_view line;
        do {
            const auto more = lines_.next(line);
            if (!more || !*more)
                return more;
        } while (line.find_first_not_of(" \t") == std::string_view::npos);
        auto parsed = kvcache::parse_json_as<nlohmann::json>(line, lines_.source().name());
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

/// The JSON objects of a source, separated by white space: a file with a single object, or one object per line, or
/// objects over several lines. Memory: the largest object, parsed.
class json_documents {
public:
    /// Maximum size of an object.
    static constexpr std::size_t largest = std::size_t{128} << 20; // bytes

    explicit json_documents(byte_source source) : source_(std::move(source)) {}

    /// Reads the next object. Returns: false at the end. Errors: those of the source; malformed, for invalid JSON,
    /// with file and line; truncated, for an incomplete object; out_of_range, for one larger than `largest`.
    [[nodiscard]] kvcache::result<bool> next(nlohmann::json& value) {
        text_.clear();
        int depth = 0;
        bool in_string = false, escaped = false;
        for (;;) {
            if (begin_ == end_) {
                const auto got = source_.read(chunk_);
                if (!got)
                    return got.error();
                begin_ = 0;
                end_ = *got;
                if (end_ == 0)
                    return text_.empty()
                               ? kvcache::result<bool>(false)
                               : failure(kvcache::error_code::truncated, "the object that begins here does not end");
            }
            const char c = chunk_[begin_++];
            const bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
            line_ += c == '\n';
            if (text_.empty()) {
                if (blank)
                    continue;
                first_line_ = line_;
                ++number_;
                if (c != '{')
                    return failure(kvcache::error_code::malformed, "no JSON object begins here");
            }
            if (text_.size() == largest)
                return failure(kvcache::error_code::out_of_range, "the object that begins here is larger than 128 MiB");
            text_.push_back(c);
            if (in_string) {
                in_string = escaped || c != '"';
                escaped = !escaped && c == '\\';
            } else if (c == '"') {
                in_string = true;
            } else if (c == '{' || c == '[') {
                ++depth;
            } else if ((c == '}' || c == ']') && --depth == 0) {
                break;
            }
        }
        auto parsed = kvcache::parse_json_as<nlohmann::json>(text_, source_.name());
        if (!parsed)
            return failure(parsed.error().code, "of the object that begins here, " + parsed.error().message);
        value = *std::move(parsed);
        return true;
    }

    /// Returns the position of the last object read, for errors; number() is its number, from 1.
    [[nodiscard]] std::string where() const { return source_.name() + ", line " + std::to_string(first_line_); }
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

    [[nodiscard]] const byte_source& source() const noexcept { return source_; }

private:
    [[nodiscard]] kvcache::error failure(kvcache::error_code code, const std::string& words) const {
        return {code, source_.name(), where() + ": " + words};
    }

    byte_source source_;
    std::array<char, std::size_t{64} << 10> chunk_ = {};
    std::size_t begin_ = 0, end_ = 0; // unread part of the chunk
    std::string text_;
    std::uint64_t line_ = 1, first_line_ = 1, number_ = 0;
};

/// A JSON object of a trace, with typed access to its fields. The first invalid field is kept as the error; values
/// read after it are meaningless. A reader checks error() once, at the end.
class json_record {
public:
    /// `where` names the object in errors: "trace.jsonl, line 7". Requires: `object` outlives the record.
    json_record(const nlohmann::json& object, std::string where) : object_(&object), where_(std::move(where)) {
        if (!object.is_object())
            fail(kvcache::error_code::malformed, "", std::string("is ") + object.type_name() + " and no object");
    }

    /// Returns an integer from 0 to `limit`.
    [[nodiscard]] std::uint64_t count(const char* field, std::uint64_t limit) {
        const auto* value = find(field);
        return value == nullptr ? 0 : whole(*value, field, limit);
    }

    /// Returns a number of seconds or milliseconds, at least 0 and below 10^15.
    [[nodiscard]] double time(const char* field) {
        const auto* value = find(field);
        if (value == nullptr)
            return 0.0;
        if (!value->is_number())
            return fail(kvcache::error_code::malformed, field,
                        std::string("is ") + value->type_name() + " and no number"),
                   0.0;
        const auto number = value->get<double>();
        if (!(number >= 0.0 && number < 1e15))
            return fail(kvcache::error_code::out_of_range, field,
                        "is " + value->dump() + ", which is no time since a start"),
                   0.0;
        return number;
    }

    /// Reads integers of at most 64 bits into `ids`, whose memory is reused.
    void numbers(const char* field, std::vector<std::uint64_t>& ids) {
        ids.clear();
        const auto* value = find(field);
        if (value == nullptr)
            return;
        if (!value->is_array())
            return fail(kvcache::error_code::malformed, field,
                        std::string("is ") + value->type_name() + " and no array");
        for (std::size_t i = 0; i < value->size() && !error_; ++i) {
            const auto& one = (*value)[i];
            if (one.is_number_unsigned()) // the element's name is built for errors only
                ids.push_back(one.get<std::uint64_t>());
            else
                ids.push_back(whole(one, std::string(field) + "[" + std::to_string(i) + "]", ~std::uint64_t{0}));
        }
    }

    /// Returns a text; "" if the field is missing and not `needed`.
    [[nodiscard]] std::string text(const char* field, bool needed) {
        const auto at = object_->is_object() ? object_->find(field) : object_->end();
        if (at == object_->end() && !needed)
            return "";
        const auto* value = find(field);
        if (value != nullptr && !value->is_string())
            fail(kvcache::error_code::malformed, field, std::string("is ") + value->type_name() + " and no string");
        return value != nullptr && value->is_string() ? value->get<std::string>() : "";
    }

    /// Returns an array field; null if it is not an array.
    [[nodiscard]] const nlohmann::json* array(const char* field) {
        const auto* value = find(field);
        if (value != nullptr && !value->is_array())
            fail(kvcache::error_code::malformed, field, std::string("is ") + value->type_name() + " and no array");
        return value != nullptr && value->is_array() ? value : nullptr;
    }

    [[nodiscard]] bool has(const char* field) const { return object_->is_object() && object_->contains(field); }

    /// Records that a field is invalid.
    void fail(kvcache::error_code code, const std::string& field, const std::string& words) {
        if (!error_)
            error_ = kvcache::error{code, field.empty() ? where_ : field,
                                    where_ + ": " + (field.empty() ? "the record " : field + " ") + words};
    }

    /// The first error, if there was one.
    [[nodiscard]] const std::optional<kvcache::error>& error() const noexcept { return error_; }

private:
    [[nodiscard]] const nlohmann::json* find(const char* field) {
        if (!object_->is_object())
            return nullptr;
        const auto at = object_->find(field);
        if (at != object_->end())
            return &*at;
        fail(kvcache::error_code::not_found, field, "is missing");
        return nullptr;
    }

    [[nodiscard]] std::uint64_t whole(const nlohmann::json& value, const std::string& field, std::uint64_t limit) {
        if (value.is_number_unsigned() && value.get<std::uint64_t>() <= limit)
            return value.get<std::uint64_t>();
        if (value.is_number())
            fail(kvcache::error_code::out_of_range, field,
                 "is " + value.dump() + ", and has to be an integer from 0 to " + std::to_string(limit));
        else
            fail(kvcache::error_code::malformed, field, std::string("is ") + value.type_name() + " and no number");
        return 0;
    }

    const nlohmann::json* object_;
    std::string where_;
    std::optional<kvcache::error> error_;
};

} // namespace bench
