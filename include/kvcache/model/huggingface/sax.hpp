// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/json.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/model/huggingface/shown.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache::inline KVCACHE_ABI::detail {

/// Strict JSON as a stream of events, in memory that does not grow with its depth and in time that does not grow with
/// the keys of an object. `Derived` gives on_start_object, on_end_object, on_key, on_start_array, on_end_array,
/// on_string, on_unsigned and on_other (null, booleans, negative and broken numbers), each false to stop; fail() says
/// why.
template <class Derived>
class sax_events {
public:
    using json = nlohmann::json;

    /// Parses `text` to its end. Returns: what stopped it, with `name` before the words.
    [[nodiscard]] result<void> parse(std::span<const std::byte> text, const std::string& name) {
        const auto* begin = reinterpret_cast<const char*>(text.data());
        if (!json::sax_parse(begin, begin + text.size(), self()) && !problem_)
            fail(error_code::malformed, "JSON", "the text is not JSON");
        if (!problem_)
            return {};
        problem_->message = name + ": " + problem_->field + ": " + problem_->message;
        return *std::move(problem_);
    }

    /// Keeps the first reason. Returns: false.
    bool fail(error_code code, std::string field, std::string message) {
        if (!problem_)
            problem_ = kvcache::error{code, std::move(field), std::move(message)};
        return false;
    }

    // The names that nlohmann's parser calls.
    bool null() { return self()->on_other("null"); }
    bool boolean(bool) { return self()->on_other("a boolean"); }
    bool number_integer(std::int64_t) { return self()->on_other("a negative number"); }
    bool number_unsigned(std::uint64_t value) { return self()->on_unsigned(value); }
    bool number_float(double, const std::string&) { return self()->on_other("a number that is no 64-bit integer"); }
    bool string(std::string& text) { return self()->on_string(text); }
    bool binary(json::binary_t&) { return self()->on_other("binary"); }
    bool start_object(std::size_t) { return self()->on_start_object(); }
    bool key(std::string& name) { return self()->on_key(name); }
    bool end_object() { return self()->on_end_object(); }
    bool start_array(std::size_t) { return self()->on_start_array(); }
    bool end_array() { return self()->on_end_array(); }
    bool parse_error(std::size_t position, const std::string&, const json::exception& reason) {
        return fail(error_code::malformed, "JSON", "at byte " + std::to_string(position) + ": " + shown(reason.what()));
    }

private:
    Derived* self() { return static_cast<Derived*>(this); }

    std::optional<kvcache::error> problem_;
};

} // namespace kvcache::inline KVCACHE_ABI::detail
