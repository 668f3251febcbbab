// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/traces/byte_source.hpp>
#include <kvcache/core/json.hpp>
#include <kvcache/core/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The JSON objects of a source, separated by white space: a file with a single object, or one object per line, or
/// objects over several lines. Memory: the largest object, parsed.
class json_documents {
public:
    /// Maximum size of an object.
    static constexpr std::size_t largest = std::size_t{128} << 20; // bytes

    explicit json_documents(byte_source source) : source_(std::move(source)) {}

    /// Reads the next object. Returns: false at the end. Errors: those of the source; malformed, for invalid JSON,
    /// with file and line; truncated, for an incomplete object; out_of_range, for one larger than `largest`.
    [[nodiscard]] result<bool> next(nlohmann::json& value) {
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
                    return text_.empty() ? result<bool>(false)
                                         : failure(error_code::truncated, "the object that begins here does not end");
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
                    return failure(error_code::malformed, "no JSON object begins here");
            }
            if (text_.size() == largest)
                return failure(error_code::out_of_range, "the object that begins here is larger than 128 MiB");
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
        auto parsed = parse_json_as<nlohmann::json>(text_, source_.name());
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
    [[nodiscard]] kvcache::error failure(error_code code, const std::string& words) const {
        return {code, source_.name(), where() + ": " + words};
    }

    byte_source source_;
    std::array<char, std::size_t{64} << 10> chunk_ = {};
    std::size_t begin_ = 0, end_ = 0; // unread part of the chunk
    std::string text_;
    std::uint64_t line_ = 1, first_line_ = 1, number_ = 0;
};

}} // namespace kvcache
