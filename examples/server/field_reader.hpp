// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>

#include <charconv>
#include <optional>
#include <string>
#include <type_traits>

namespace server {

/// A request body. Unlike an order-preserving JSON object, it finds a key among very many in O(log n).
using sent_json = nlohmann::json;

/// Errors: malformed.
[[nodiscard]] inline kvcache::result<sent_json> read_body(const std::string& text) {
    return kvcache::parse_json_as<sent_json>(text, "invalid json");
}

/// Reads the fields of one object. The first invalid field is kept as the error, and ends the reading.
class field_reader {
public:
    explicit field_reader(const sent_json& body) : body_(body) {}

    template <class To>
    void number(const char* name, To& to, double least, double most) {
        const sent_json* at = find(name);
        if (at == nullptr)
            return;
        if (!at->is_number() || (std::is_integral_v<To> && !at->is_number_integer()))
            return refuse(name, std::is_integral_v<To> ? "must be an integer" : "must be a number");
        const double value = at->get<double>();
        if (!(value >= least && value <= most))
            return refuse(name, "must be from " + text_of(least) + " to " + text_of(most));
        to = at->get<To>();
    }
    void flag(const char* name, bool& to) {
        if (const sent_json* at = find(name)) {
            if (!at->is_boolean())
                return refuse(name, "must be true or false");
            to = at->get<bool>();
        }
    }
    void text(const char* name, std::string& to) {
        if (const sent_json* at = find(name)) {
            if (!at->is_string())
                return refuse(name, "must be a string");
            to = at->get<std::string>();
        }
    }

    /// Returns the value of a field; none if it is missing or null, or after an error.
    [[nodiscard]] const sent_json* find(const char* name) const {
        if (problem_ || !body_.is_object())
            return nullptr;
        const auto at = body_.find(name);
        return at == body_.end() || at->is_null() ? nullptr : &*at;
    }

    void refuse(const std::string& name, const std::string& why) {
        if (!problem_)
            problem_ = kvcache::error{kvcache::error_code::malformed, name, name + " " + why};
    }

    [[nodiscard]] const std::optional<kvcache::error>& problem() const noexcept { return problem_; }

private:
    [[nodiscard]] static std::string text_of(double n) {
        char out[32];
        return {out, std::to_chars(out, out + sizeof out, n).ptr};
    }

    const sent_json& body_;
    std::optional<kvcache::error> problem_;
};

} // namespace server
