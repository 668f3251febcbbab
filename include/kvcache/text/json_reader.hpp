// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// A JSON value whose objects look up a key in O(log n); tokenizer.json is read into it.
using json_document = nlohmann::json;

/// A position in a JSON document that knows its path. The first field that is missing, unknown or of a wrong type is
/// kept as an error, which all positions of the document share. Fields read after it have default values.
template <class...>
class basic_json_reader {
public:
    basic_json_reader(const json_document& value, std::string path, std::optional<error>& problem)
        : value_(&value), path_(std::move(path)), problem_(&problem) {}

    [[nodiscard]] const json_document& value() const noexcept { return *value_; }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] bool failed() const noexcept { return problem_->has_value(); }

    /// The first error of the document, if there is one.
    [[nodiscard]] std::optional<error>& problem() const noexcept { return *problem_; }

    /// Keeps an error that names the field `key`, or this position if `key` is empty.
    void refuse(error_code code, std::string_view key, std::string message) const {
        if (!*problem_)
            *problem_ = error{code, field(key), std::move(message)};
    }
    void refuse(error_code code, std::string_view key, std::initializer_list<std::string_view> words) const {
        refuse(code, key, kvcache::detail::joined(words));
    }
    /// Keeps an error unchanged.
    void refuse(error reason) const {
        if (!*problem_)
            *problem_ = std::move(reason);
    }

    /// Returns whether the key is present and not null.
    [[nodiscard]] bool has(std::string_view key) const {
        const json_document* found = find(key);
        return found != nullptr && !found->is_null();
    }
    /// Returns the member `key`; a missing one is an error.
    [[nodiscard]] basic_json_reader member(std::string_view key) const {
        static const json_document nothing;
        if (!value_->is_object()) {
            refuse(error_code::mismatched, "", {"is ", value_->type_name(), ", not an object"});
            return {nothing, field(key), *problem_};
        }
        const json_document* found = find(key);
        if (found == nullptr) {
            refuse(error_code::not_found, key, "is missing");
            return {nothing, field(key), *problem_};
        }
        return {*found, field(key), *problem_};
    }
    /// Calls `use(position)` for each element; anything but an array is an error.
    template <class Use>
    void each(Use use) const {
        if (!value_->is_array())
            return refuse(error_code::mismatched, "", {"is ", value_->type_name(), ", not an array"});
        for (std::size_t i = 0; i < value_->size() && !failed(); ++i)
            use(basic_json_reader((*value_)[i], kvcache::detail::joined({path_, "[", std::to_string(i), "]"}),
                                  *problem_));
    }

    [[nodiscard]] std::string text() const {
        if (const auto* s = value_->get_ptr<const std::string*>())
            return *s;
        refuse(error_code::mismatched, "", {"is ", value_->type_name(), ", not a string"});
        return {};
    }
    [[nodiscard]] bool flag() const {
        if (const auto* b = value_->get_ptr<const bool*>())
            return *b;
        refuse(error_code::mismatched, "", {"is ", value_->type_name(), ", not true or false"});
        return false;
    }
    /// Returns an integer from 0 to `greatest`.
    [[nodiscard]] std::uint64_t number(std::uint64_t greatest) const {
        if (value_->is_number_unsigned()) {
            const auto n = value_->get<std::uint64_t>();
            if (n <= greatest)
                return n;
        } else if (!value_->is_number_integer()) {
            refuse(error_code::mismatched, "", {"is ", value_->type_name(), ", not an integer"});
            return 0;
        }
        refuse(error_code::out_of_range, "", {"is ", shown(*value_), ", not from 0 to ", std::to_string(greatest)});
        return 0;
    }

    [[nodiscard]] std::string text(std::string_view key) const { return member(key).text(); }
    [[nodiscard]] std::string text_or(std::string_view key, std::string otherwise) const {
        return has(key) ? member(key).text() : std::move(otherwise);
    }
    [[nodiscard]] bool flag_or(std::string_view key, bool otherwise) const {
        return has(key) ? member(key).flag() : otherwise;
    }

    /// Returns a number as JSON text.
    [[nodiscard]] static std::string shown(const json_document& number) {
        if (number.is_number_float())
            return json_text(number.get<double>());
        return number.is_number_unsigned() ? std::to_string(number.get<std::uint64_t>())
                                           : std::to_string(number.get<std::int64_t>());
    }

private:
    [[nodiscard]] const json_document* find(std::string_view key) const {
        if (!value_->is_object())
            return nullptr;
        const auto found = value_->find(key);
        return found == value_->end() ? nullptr : &*found;
    }
    [[nodiscard]] std::string field(std::string_view key) const {
        if (key.empty())
            return path_;
        return path_.empty() ? std::string(key) : kvcache::detail::joined({path_, ".", key});
    }

    const json_document* value_;
    std::string path_;
    std::optional<error>* problem_;
};
using json_reader = basic_json_reader<>;

}}} // namespace kvcache::text
