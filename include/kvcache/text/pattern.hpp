// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/regex.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// The pattern of a Replace or Split: a literal string or a regular expression. Copies share the expression.
template <class...>
class basic_pattern {
public:
    basic_pattern() = default;

    /// Reads {"String": ...}, {"Regex": ...}, or a bare string, which is a literal.
    [[nodiscard]] static basic_pattern open(const json_reader& at) {
        basic_pattern made;
        if (at.value().is_string()) {
            made.literal_ = at.text();
        } else if (at.has("String")) {
            made.literal_ = at.text("String");
        } else {
            const auto regexp = at.member("Regex");
            auto compiled = regex::open(regexp.text(), regexp.path());
            if (!compiled)
                at.refuse(compiled.error());
            else
                made.expression_ = std::make_shared<const regex>(std::move(*compiled));
        }
        return made;
    }
    [[nodiscard]] static basic_pattern of(regex expression) {
        basic_pattern made;
        made.expression_ = std::make_shared<const regex>(std::move(expression));
        return made;
    }

    /// Calls `found(begin, end)` for every match, from left to right, without overlaps. An empty literal never
    /// matches.
    template <class Found>
    [[nodiscard]] result<void> each_match(std::string_view text, Found found) const {
        if (expression_)
            return expression_->each_match(text, found);
        if (literal_.empty())
            return {};
        for (auto at = text.find(literal_); at != text.npos; at = text.find(literal_, at + literal_.size()))
            found(at, at + literal_.size());
        return {};
    }

private:
    std::string literal_;
    std::shared_ptr<const regex> expression_;
};
using pattern = basic_pattern<>;

}}} // namespace kvcache::text
