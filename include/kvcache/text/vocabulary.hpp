// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/text/json_reader.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// The strings of a model's tokens by id, and the inverse. Unused ids have no token.
template <class...>
class basic_vocabulary {
public:
    basic_vocabulary() = default;
    basic_vocabulary(basic_vocabulary&&) noexcept = default;
    basic_vocabulary& operator=(basic_vocabulary&&) noexcept = default;

    /// Reads an object of string to id. Errors: two strings with one id; an id far larger than the number of tokens.
    [[nodiscard]] static basic_vocabulary open(const json_reader& at) {
        basic_vocabulary made;
        if (!at.value().is_object()) {
            at.refuse(error_code::mismatched, "", {"is ", at.value().type_name(), ", not an object"});
            return made;
        }
        // A sparse id costs memory; real files leave few gaps.
        const std::uint64_t greatest = 4 * at.value().size() + 65536;
        for (const auto& entry : at.value().template get_ref<const json_document::object_t&>()) {
            const std::string& token = entry.first;
            const json_document& id = entry.second;
            if (!id.is_number_unsigned() || id.get<std::uint64_t>() > greatest) {
                at.refuse(id.is_number() ? error_code::out_of_range : error_code::mismatched, "",
                          {"gives \"", token, "\" the id ", shown(id), ", not an integer from 0 to ",
                           std::to_string(greatest)});
                return made;
            }
            const auto n = id.get<std::size_t>();
            if (n < made.tokens_.size() && made.present_[n]) {
                at.refuse(error_code::malformed, "",
                          {"gives the id ", std::to_string(n), " to \"", made.tokens_[n], "\" and to \"", token, "\""});
                return made;
            }
            if (n >= made.tokens_.size()) {
                made.tokens_.resize(n + 1);
                made.present_.resize(n + 1, false);
            }
            made.tokens_[n] = token;
            made.present_[n] = true;
        }
        made.ids_.reserve(at.value().size());
        for (std::size_t n = 0; n < made.tokens_.size(); ++n)
            if (made.present_[n])
                made.ids_.emplace(made.tokens_[n], static_cast<std::int32_t>(n));
        return made;
    }

    /// A vocabulary of these strings, with ids in their order; of equal strings the last one is found. Requires: fewer
    /// than 2^31.
    [[nodiscard]] static basic_vocabulary of(std::vector<std::string> tokens) {
        basic_vocabulary made;
        made.tokens_ = std::move(tokens);
        made.present_.assign(made.tokens_.size(), true);
        made.ids_.reserve(made.tokens_.size());
        for (std::size_t n = 0; n < made.tokens_.size(); ++n)
            made.ids_.insert_or_assign(made.tokens_[n], static_cast<std::int32_t>(n));
        return made;
    }

    /// One more than the greatest id.
    [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }
    /// Number of tokens.
    [[nodiscard]] std::size_t count() const noexcept { return ids_.size(); }

    [[nodiscard]] std::optional<std::int32_t> try_id(std::string_view token) const {
        const auto found = ids_.find(token);
        return found == ids_.end() ? std::nullopt : std::optional(found->second);
    }
    [[nodiscard]] const std::string* try_token(std::int32_t id) const {
        const auto n = static_cast<std::size_t>(id);
        return id >= 0 && n < tokens_.size() && present_[n] ? &tokens_[n] : nullptr;
    }

private:
    [[nodiscard]] static std::string shown(const json_document& value) {
        return value.is_number() ? json_reader::shown(value) : value.type_name();
    }

    std::vector<std::string> tokens_;
    std::vector<bool> present_;
    std::unordered_map<std::string_view, std::int32_t> ids_; // views into tokens_, whose buffer moves with this object
};
using vocabulary = basic_vocabulary<>;

}}} // namespace kvcache::text
