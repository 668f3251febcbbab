// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/formats/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Strict JSON parser that emits events. Its memory does not grow with the nesting depth, and its time does not depend
/// on the number of keys of an object. Every on_ function returns false to stop; fail() records the reason.
template <class...>
class sax_events : private json_events {
public:
    /// Parses all of `text`. Returns: the error that stopped it, with `name` before the message.
    [[nodiscard]] result<void> parse(std::span<const std::byte> text, const std::string& name) {
        if (!tell_json({reinterpret_cast<const char*>(text.data()), text.size()}, *this) && !problem_)
            fail(error_code::malformed, "JSON", "the text is not JSON");
        if (!problem_)
            return {};
        problem_->message = joined({name, ": ", problem_->field, ": ", problem_->message});
        return *std::move(problem_);
    }

    /// Records the first error. Returns: false.
    bool fail(error_code code, std::string field, std::string message) {
        if (!problem_)
            problem_ = kvcache::error{code, std::move(field), std::move(message)};
        return false;
    }

    virtual bool on_start_object() = 0;
    virtual bool on_end_object() = 0;
    virtual bool on_key(std::string& name) = 0;
    virtual bool on_start_array() = 0;
    virtual bool on_end_array() = 0;
    virtual bool on_string(std::string& text) = 0;
    virtual bool on_unsigned(std::uint64_t value) = 0;
    virtual bool on_other(std::string_view what) = 0; ///< All other values: null, booleans, other numbers.

private:
    bool null() final { return on_other("null"); }
    bool boolean(bool) final { return on_other("a boolean"); }
    bool number_integer(std::int64_t) final { return on_other("a negative number"); }
    bool number_unsigned(std::uint64_t value) final { return on_unsigned(value); }
    bool number_float(double, const std::string&) final { return on_other("a number that is no 64-bit integer"); }
    bool string(std::string& text) final { return on_string(text); }
    bool binary(json::binary_t&) final { return on_other("binary"); }
    bool start_object(std::size_t) final { return on_start_object(); }
    bool key(std::string& name) final { return on_key(name); }
    bool end_object() final { return on_end_object(); }
    bool start_array(std::size_t) final { return on_start_array(); }
    bool end_array() final { return on_end_array(); }
    bool parse_error(std::size_t position, const std::string&, const json::exception& reason) final {
        return fail(error_code::malformed, "JSON",
                    joined({"at byte ", std::to_string(position), ": ", shown(reason.what())}));
    }

    std::optional<kvcache::error> problem_;
};

/// Compares two JSON values; numbers compare across types. Avoids == of the JSON library, for which the compiler tries
/// every operator== in std on all conversions of JSON.
KVCACHE_LAZY [[nodiscard]] inline bool same_json(const json& a, const json& b) {
    if (a.is_number_float() || b.is_number_float())
        return a.is_number() && b.is_number() && a.get<double>() == b.get<double>();
    if (a.is_number() && b.is_number())
        return a.get<std::int64_t>() == b.get<std::int64_t>();
    if (a.type() != b.type() || a.size() != b.size())
        return false;
    if (a.is_boolean())
        return a.get<bool>() == b.get<bool>();
    if (a.is_string())
        return a.get_ref<const std::string&>() == b.get_ref<const std::string&>();
    for (auto x = a.begin(), y = b.begin(); x != a.end(); ++x, ++y)
        if ((a.is_object() && x.key() != y.key()) || !same_json(*x, *y))
            return false;
    return true;
}

/// Type-checked reader of the fields of one JSON object. After the first error every getter returns a default, so that
/// a caller reads all fields and checks problem() once. Null counts as absent, except for present().
template <class...>
class basic_json_fields {
public:
    /// `prefix`: precedes a field's name in errors, such as "rope_scaling.".
    basic_json_fields(const json& object, std::string file, std::string prefix)
        : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

    [[nodiscard]] const std::optional<kvcache::error>& problem() const noexcept { return problem_; }

    /// Records an error, unless there is one already.
    void refuse(error_code code, std::string_view field, const std::string& what) {
        if (problem_)
            return;
        const std::string name = prefix_ + shown(field);
        problem_ = kvcache::error{code, name, joined({file_, ": ", name, ": ", what})};
    }
    void refuse(error_code code, std::string_view field, std::initializer_list<std::string_view> words) {
        refuse(code, field, joined(words));
    }
    void refuse(const kvcache::error& reason) {
        if (!problem_)
            problem_ = reason;
    }

    /// Returns the value; null if it is absent or null.
    [[nodiscard]] const json* find(std::string_view name) const {
        const auto at = object_.find(name);
        return at == object_.end() || at->is_null() ? nullptr : &*at;
    }

    /// Returns whether the key is present, even if null.
    [[nodiscard]] bool present(std::string_view name) const { return object_.contains(name); }

    /// Returns an integer >= 0. Without a fallback the field is required.
    [[nodiscard]] std::size_t count(std::string_view name, std::optional<std::size_t> fallback) {
        const json* value = find(name);
        if (value == nullptr) {
            if (!fallback)
                refuse(error_code::not_found, name, "the field is missing");
            return fallback.value_or(0);
        }
        if (!value->is_number_integer()) {
            refuse(error_code::malformed, name, {"it must be an integer, not ", as_text(*value)});
            return 0;
        }
        if (!value->is_number_unsigned()) {
            refuse(error_code::out_of_range, name, {"it is negative: ", as_text(*value)});
            return 0;
        }
        return static_cast<std::size_t>(value->get<std::uint64_t>());
    }

    [[nodiscard]] double number(std::string_view name, std::optional<double> fallback) {
        const json* value = find(name);
        if (value == nullptr) {
            if (!fallback)
                refuse(error_code::not_found, name, "the field is missing");
            return fallback.value_or(0.0);
        }
        if (!value->is_number()) {
            refuse(error_code::malformed, name, {"it must be a number, not ", as_text(*value)});
            return 0.0;
        }
        return value->get<double>();
    }

    /// Returns a list of numbers, which is required.
    [[nodiscard]] std::vector<float> numbers(std::string_view name) {
        std::vector<float> all;
        const json* value = find(name);
        if (value == nullptr)
            refuse(error_code::not_found, name, "the field is missing");
        else if (!value->is_array() ||
                 !std::all_of(value->begin(), value->end(), [](const json& one) { return one.is_number(); }))
            refuse(error_code::malformed, name, {"it must be a list of numbers, not ", as_text(*value)});
        else
            for (const json& one : *value)
                all.push_back(one.get<float>());
        return all;
    }

    [[nodiscard]] bool flag(std::string_view name, bool fallback) {
        const json* value = find(name);
        if (value == nullptr)
            return fallback;
        if (!value->is_boolean()) {
            refuse(error_code::malformed, name, {"it must be true or false, not ", as_text(*value)});
            return fallback;
        }
        return value->get<bool>();
    }

    [[nodiscard]] std::optional<std::string> text(std::string_view name) {
        const json* value = find(name);
        if (value == nullptr)
            return std::nullopt;
        if (!value->is_string()) {
            refuse(error_code::malformed, name, {"it must be a text, not ", as_text(*value)});
            return std::nullopt;
        }
        return value->get<std::string>();
    }

    /// Returns one token id or a list of them; empty if absent or null.
    [[nodiscard]] std::vector<token_id> ids(std::string_view name) {
        std::vector<token_id> all;
        const auto add = [&](const json& value) {
            if (!value.is_number_unsigned() ||
                value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()))
                return refuse(error_code::malformed, name, "it must hold token ids, not " + as_text(value));
            const auto id = static_cast<token_id>(value.get<std::int32_t>());
            if (std::find(all.begin(), all.end(), id) == all.end())
                all.push_back(id);
        };
        const json* value = find(name);
        if (value != nullptr && value->is_array())
            for (const json& each : *value)
                add(each);
        else if (value != nullptr)
            add(*value);
        return all;
    }

    /// Rejects the field unless it is absent, null, false, empty or `neutral`. For fields that would change the model's
    /// arithmetic.
    void only(std::string_view name, const json& neutral, std::string_view what) {
        const json* value = find(name);
        const bool off = neutral.is_null() || same_json(neutral, 0);
        if (value == nullptr || same_json(*value, neutral) || (off && same_json(*value, false)) ||
            (value->is_structured() && value->empty()))
            return;
        refuse(error_code::unsupported, name, {what, " is not supported; it is ", as_text(*value)});
    }

    [[nodiscard]] static bool says(const json& value, std::string_view text) {
        const auto* held = value.get_ptr<const std::string*>();
        return held != nullptr && *held == text;
    }
    [[nodiscard]] static std::string as_text(const json& value) { return shown(json_text(value)); }

private:
    const json& object_;
    std::string file_;
    std::string prefix_;
    std::optional<kvcache::error> problem_;
};
using json_fields = basic_json_fields<>;

}}} // namespace kvcache::detail
