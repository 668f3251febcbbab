// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

namespace detail {

/// Rewrites one pattern. Each step reads the construct at `at_` and appends its PCRE2 equivalent.
template <class...>
class basic_dialect_rewriter {
public:
    basic_dialect_rewriter(std::string_view pattern, const std::string& field) : pattern_(pattern), field_(field) {}

    [[nodiscard]] result<std::string> run() {
        while (at_ < pattern_.size() && refusal_.empty())
            step();
        if (!refusal_.empty())
            return error{error_code::unsupported, field_,
                         kvcache::detail::joined(
                             {"the pattern \"", pattern_, "\" has ", refusal_, ", which this library does not run"})};
        return std::move(out_);
    }

private:
    [[nodiscard]] bool follows(std::string_view what) const { return pattern_.substr(at_).starts_with(what); }
    void take(std::size_t n) {
        out_.append(pattern_.substr(at_, n));
        at_ += n;
    }
    void write(std::string_view what, std::size_t taken) {
        out_.append(what);
        at_ += taken;
    }

    void step() {
        const char c = pattern_[at_];
        if (c == '\\')
            return escape();
        if (in_class_) {
            if (c == ']' && at_ > class_begin_)
                in_class_ = false;
            else if (c == '[')
                return refuse("a set inside a set");
            else if (follows("&&"))
                return refuse("the set operation &&");
            return take(1);
        }
        if (c == '[') {
            in_class_ = true;
            const std::size_t open = follows("[^") ? 2 : 1;
            class_begin_ = at_ + open;
            return take(open);
        }
        if (follows("(*") || follows("(?P="))
            return refuse(std::string(pattern_.substr(at_, 3)));
        // In Ruby x{1,3}+ repeats the group; in PCRE2 it is possessive.
        if (c == '}' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '+' && interval())
            return refuse("{...}+");
        take(1);
    }

    [[nodiscard]] bool interval() const {
        const auto open = pattern_.rfind('{', at_);
        if (open == std::string_view::npos || (open > 1 && pattern_[open - 2] == '\\'))
            return false;
        const auto inside = pattern_.substr(open + 1, at_ - open - 1);
        return inside.find_first_not_of("0123456789,") == std::string_view::npos;
    }

    void escape() {
        if (at_ + 1 == pattern_.size())
            return take(1);
        constexpr std::string_view word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
        switch (pattern_[at_ + 1]) {
        case 's': // PCRE2's \s contains U+180E, Unicode's White_Space does not
            return write(R"(\p{White_Space})", 2);
        case 'S':
            return write(R"(\P{White_Space})", 2);
        case 'w':
            // Outside a set, Oniguruma includes the superscript digits and fractions of Latin-1.
            return write(
                in_class_ ? std::string(word) : kvcache::detail::joined({"[", word, R"(\xb2\xb3\xb9\xbc-\xbe])"}), 2);
        case 'W':
            return in_class_ ? refuse("\\W inside a set")
                             : write(kvcache::detail::joined({"[^", word, R"(\xb2\xb3\xb9\xbc-\xbe])"}), 2);
        case 'h': // a hexadecimal digit, not PCRE2's horizontal space
            return write(in_class_ ? "0-9a-fA-F" : "[0-9a-fA-F]", 2);
        case 'H':
            return in_class_ ? refuse("\\H inside a set") : write("[^0-9a-fA-F]", 2);
        case 'u':
            return unicode_escape();
        case 'p':
        case 'P':
            return property();
        case '1':
        case '2':
        case '3':
        case '4':
        case '5':
        case '6':
        case '7':
        case '8':
        case '9': // the length that it compares is not paid for
            return in_class_ ? take(2) : refuse("a reference to a group");
        case 'b':
        case 'B':
            return in_class_ ? take(2) : refuse("\\b"); // its definition of a word differs
        case 'K':
        case 'g':
        case 'k':
        case 'N':
        case 'O':
        case 'R':
        case 'X':
        case 'y':
        case 'Y':
        case 'Q':
        case 'E':
            return refuse(std::string("\\") + pattern_[at_ + 1]);
        default:
            return take(2);
        }
    }

    void unicode_escape() {
        const auto digits = pattern_.substr(at_ + 2, 4);
        if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
            return refuse("\\u without four digits");
        write("\\x{" + std::string(digits) + "}", 6);
    }

    void property() {
        if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{')
            return take(2);
        const auto close = pattern_.find('}', at_);
        if (close == std::string_view::npos)
            return refuse("\\p{ without }");
        auto name = pattern_.substr(at_ + 3, close - at_ - 3);
        const bool negated = name.starts_with('^');
        name.remove_prefix(negated ? 1 : 0);
        static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> categories{{{"Letter", "L"},
                                                                                                  {"Mark", "M"},
                                                                                                  {"Number", "N"},
                                                                                                  {"Punctuation", "P"},
                                                                                                  {"Symbol", "S"},
                                                                                                  {"Separator", "Z"},
                                                                                                  {"Other", "C"}}};
        static constexpr std::array<std::string_view, 7> binary{
            "Any", "Alphabetic", "White_Space", "Uppercase", "Lowercase", "Emoji", "Extended_Pictographic"};
        const auto* const category = std::ranges::find(categories, name, &decltype(categories)::value_type::first);
        std::string said(name);
        if (category != categories.end())
            said = category->second;
        else if (name.size() > 2 && std::ranges::find(binary, name) == binary.end())
            said = "sc:" + said; // PCRE2 reads a bare script name as script extensions
        write(kvcache::detail::joined({pattern_.substr(at_, 2), negated ? "{^" : "{", said, "}"}), close + 1 - at_);
    }

    void refuse(std::string what) { refusal_ = std::move(what); }

    std::string_view pattern_;
    const std::string& field_;
    std::string out_;
    std::string refusal_;
    std::size_t at_ = 0;
    std::size_t class_begin_ = 0;
    bool in_class_ = false;
};
using dialect_rewriter = basic_dialect_rewriter<>;

} // namespace detail

/// Translates a pattern of tokenizer.json from Oniguruma's (Ruby's) dialect to PCRE2's. Constructs with a different
/// meaning are rewritten. Errors: a construct that cannot be rewritten; the error names `field`.
KVCACHE_LAZY [[nodiscard]] inline result<std::string> pcre2_dialect(std::string_view pattern,
                                                                    const std::string& field) {
    return detail::dialect_rewriter(pattern, field).run();
}

}}} // namespace kvcache::text
