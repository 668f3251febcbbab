// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/json.hpp>
#include <kvcache/core/result.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A JSON object of a trace, with typed access to its fields. The first invalid field is kept as the error; values
/// read after it are meaningless. A reader checks error() once, at the end.
class json_record {
public:
    /// `where` names the object in errors: "trace.jsonl, line 7". Requires: `object` outlives the record.
    json_record(const nlohmann::json& object, std::string where) : object_(&object), where_(std::move(where)) {
        if (!object.is_object())
            fail(error_code::malformed, "", std::string("is ") + object.type_name() + " and no object");
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
            return fail(error_code::malformed, field, std::string("is ") + value->type_name() + " and no number"), 0.0;
        const auto number = value->get<double>();
        if (!(number >= 0.0 && number < 1e15))
            return fail(error_code::out_of_range, field, "is " + value->dump() + ", which is no time since a start"),
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
            return fail(error_code::malformed, field, std::string("is ") + value->type_name() + " and no array");
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
            fail(error_code::malformed, field, std::string("is ") + value->type_name() + " and no string");
        return value != nullptr && value->is_string() ? value->get<std::string>() : "";
    }

    /// Returns an array field; null if it is not an array.
    [[nodiscard]] const nlohmann::json* array(const char* field) {
        const auto* value = find(field);
        if (value != nullptr && !value->is_array())
            fail(error_code::malformed, field, std::string("is ") + value->type_name() + " and no array");
        return value != nullptr && value->is_array() ? value : nullptr;
    }

    [[nodiscard]] bool has(const char* field) const { return object_->is_object() && object_->contains(field); }

    /// Records that a field is invalid.
    void fail(error_code code, const std::string& field, const std::string& words) {
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
        fail(error_code::not_found, field, "is missing");
        return nullptr;
    }

    [[nodiscard]] std::uint64_t whole(const nlohmann::json& value, const std::string& field, std::uint64_t limit) {
        if (value.is_number_unsigned() && value.get<std::uint64_t>() <= limit)
            return value.get<std::uint64_t>();
        if (value.is_number())
            fail(error_code::out_of_range, field,
                 "is " + value.dump() + ", and has to be an integer from 0 to " + std::to_string(limit));
        else
            fail(error_code::malformed, field, std::string("is ") + value.type_name() + " and no number");
        return 0;
    }

    const nlohmann::json* object_;
    std::string where_;
    std::optional<kvcache::error> error_;
};

}} // namespace kvcache
