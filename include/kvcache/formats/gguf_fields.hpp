// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/formats/gguf.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Type-checked reader of the keys of a GGUF file. After the first error every getter returns a default, so that a
/// caller reads all keys and checks problem() once. It knows the keys that were read.
template <class...>
class basic_gguf_fields {
public:
    basic_gguf_fields(const gguf_header& header, std::string file) : header_(header), file_(std::move(file)) {}

    [[nodiscard]] const std::optional<kvcache::error>& problem() const noexcept { return problem_; }

    /// Records an error, unless there is one already.
    void refuse(error_code code, std::string_view key, std::initializer_list<std::string_view> words) {
        if (problem_)
            return;
        const std::string name = shown(key);
        problem_ = kvcache::error{code, name, joined({file_, ": ", name, ": ", joined(words)})};
    }
    void refuse(const kvcache::error& reason) {
        if (!problem_)
            problem_ = reason;
    }

    /// Returns the value, or null.
    [[nodiscard]] const gguf_value* find(std::string_view key) {
        const auto at = header_.metadata().find(key);
        if (at == header_.metadata().end())
            return nullptr;
        read_.insert(at->first);
        return &at->second;
    }

    /// Returns an integer >= 0. Without a fallback the key is required. An array is the value of each layer: it must
    /// repeat one number.
    [[nodiscard]] std::size_t count(std::string_view key, std::optional<std::size_t> fallback) {
        const gguf_value* value = found(key, fallback.has_value());
        if (value == nullptr)
            return fallback.value_or(0);
        std::optional<std::uint64_t> number = value->count();
        if (value->type() == gguf_type::array) {
            bool alike = true;
            value->each([&](const gguf_value& layer) {
                alike = alike && (!number || number == layer.count());
                number = layer.count();
            });
            if (!alike) {
                refuse(error_code::unsupported, key, {"it differs from layer to layer"});
                return 0;
            }
        }
        if (!number) {
            refuse(error_code::malformed, key, {"it must be an integer of at least 0, not ", as_text(*value)});
            return 0;
        }
        return static_cast<std::size_t>(*number);
    }

    [[nodiscard]] double number(std::string_view key, std::optional<double> fallback) {
        const gguf_value* value = found(key, fallback.has_value());
        if (value == nullptr)
            return fallback.value_or(0.0);
        const auto number = value->number();
        if (!number || !std::isfinite(*number)) {
            refuse(error_code::malformed, key, {"it must be a finite number, not ", as_text(*value)});
            return 0.0;
        }
        return *number;
    }

    [[nodiscard]] bool flag(std::string_view key, bool fallback) {
        const gguf_value* value = found(key, true);
        if (value == nullptr)
            return fallback;
        const auto flag = value->flag();
        if (!flag)
            refuse(error_code::malformed, key, {"it must be true or false, not ", as_text(*value)});
        return flag.value_or(fallback);
    }

    /// Returns a string; empty without the key.
    [[nodiscard]] std::string_view text(std::string_view key) {
        const gguf_value* value = found(key, true);
        if (value == nullptr)
            return {};
        const auto text = value->text();
        if (!text)
            refuse(error_code::malformed, key, {"it must be a string, not ", as_text(*value)});
        return text.value_or(std::string_view());
    }

    /// Returns an array whose elements are of a type that `fits`, or null.
    template <class Fits>
    [[nodiscard]] const gguf_value* array(std::string_view key, std::string_view what, Fits fits) {
        const gguf_value* value = found(key, true);
        if (value == nullptr || (value->type() == gguf_type::array && (value->size() == 0 || fits(value->element()))))
            return value;
        refuse(error_code::malformed, key, {"it must be an array of ", what, ", not ", as_text(*value)});
        return nullptr;
    }

    /// Returns a token id; none without the key.
    [[nodiscard]] std::optional<token_id> id(std::string_view key) {
        const gguf_value* value = found(key, true);
        if (value == nullptr)
            return std::nullopt;
        const auto number = value->count();
        if (!number || *number > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
            refuse(error_code::malformed, key, {"it must be a token id, not ", as_text(*value)});
            return std::nullopt;
        }
        return token_id{static_cast<std::int32_t>(*number)};
    }

    /// Rejects the key unless it is absent, false, 0 or `neutral`. For keys that would change the model's arithmetic.
    void only(std::string_view key, double neutral, std::string_view what) {
        const gguf_value* value = find(key);
        if (value == nullptr || value->flag() == false || value->number() == 0.0 || value->number() == neutral)
            return;
        refuse(error_code::unsupported, key, {what, " is not supported; it is ", as_text(*value)});
    }

    /// Rejects a key that begins with `prefix` and was not read: its meaning is not known.
    void refuse_unread(std::string_view prefix) {
        for (const auto& [key, value] : header_.metadata())
            if (key.starts_with(prefix) && !read_.contains(key))
                return refuse(error_code::unsupported, key,
                              {"it is not known, and may change the results; it is ", as_text(value)});
    }

    /// Formats a value for an error.
    [[nodiscard]] static std::string as_text(const gguf_value& value) {
        if (const auto text = value.text())
            return joined({"\"", shown(*text), "\""});
        if (const auto flag = value.flag())
            return *flag ? "true" : "false";
        if (value.type() == gguf_type::array)
            return joined({"an array of ", std::to_string(value.size()), " ", name_of(value.element())});
        if (const auto count = value.count())
            return std::to_string(*count);
        return std::to_string(value.number().value_or(0.0));
    }

private:
    [[nodiscard]] const gguf_value* found(std::string_view key, bool optional) {
        const gguf_value* value = find(key);
        if (value == nullptr && !optional)
            refuse(error_code::not_found, key, {"the key is missing"});
        return value;
    }

    const gguf_header& header_;
    std::string file_;
    std::set<std::string_view> read_;
    std::optional<kvcache::error> problem_;
};
using gguf_fields = basic_gguf_fields<>;

}}} // namespace kvcache::detail
