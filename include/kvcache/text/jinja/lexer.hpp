// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/value.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI::text::jinja {

/// Kinds of tokens of a template.
enum class token_kind {
    data,
    begin_block,
    end_block,
    begin_print,
    end_print,
    name,
    string,
    integer,
    number,
    sign,
    end
};

/// A token of a template, and its line.
struct token {
    token_kind kind = token_kind::end;
    std::string text = {};
    std::size_t line = 1;
};

/// Splits the text of a template into tokens. White space follows the rules of chat templates: the newline after a
/// block and the white space before a block on its line are removed (trim_blocks, lstrip_blocks).
template <class...>
class basic_lexer {
public:
    explicit basic_lexer(std::string_view source) : source_(unix_lines(source)) {}

    /// Throws: failure.
    [[nodiscard]] std::vector<token> run() {
        while (at_ < source_.size())
            data();
        add(token_kind::end, "");
        return std::move(tokens_);
    }

private:
    [[nodiscard]] static std::string unix_lines(std::string_view source) {
        std::string out;
        out.reserve(source.size());
        for (std::size_t i = 0; i < source.size(); ++i) {
            if (source[i] == '\r') {
                out.push_back('\n');
                if (i + 1 < source.size() && source[i + 1] == '\n')
                    ++i;
            } else {
                out.push_back(source[i]);
            }
        }
        if (out.ends_with('\n'))
            out.pop_back();
        return out;
    }

    [[nodiscard]] bool follows(std::string_view what) const {
        return std::string_view(source_).substr(at_).starts_with(what);
    }
    [[nodiscard]] static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
    [[nodiscard]] static bool is_digit(char c) { return c >= '0' && c <= '9'; }
    [[nodiscard]] static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

    void add(token_kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
    void advance(std::size_t n) {
        const auto begin = source_.begin() + static_cast<std::ptrdiff_t>(at_);
        line_ += static_cast<std::size_t>(std::count(begin, begin + static_cast<std::ptrdiff_t>(n), '\n'));
        at_ += n;
    }

    /// Reads the text up to the next tag, and the tag.
    void data() {
        std::size_t open = at_;
        while ((open = source_.find('{', open)) != std::string::npos) {
            const char next = open + 1 < source_.size() ? source_[open + 1] : '\0';
            if (next == '{' || next == '%' || next == '#')
                break;
            ++open;
        }
        if (open == std::string::npos) {
            add(token_kind::data, source_.substr(at_));
            at_ = source_.size();
            return;
        }
        std::string text = source_.substr(at_, open - at_);
        const char kind = source_[open + 1];
        const char control = open + 2 < source_.size() ? source_[open + 2] : '\0';
        if (control == '-')
            while (!text.empty() && is_space(text.back()))
                text.pop_back();
        else if (control != '+' && kind != '{')
            strip_line_start(text);
        if (!text.empty())
            add(token_kind::data, std::move(text));
        advance(open - at_ + 2 + (control == '-' || control == '+' ? 1 : 0));
        if (kind == '#')
            return comment();
        if (kind == '%' && raw())
            return;
        inside(kind == '{' ? "}}" : "%}", kind == '{');
    }

    void strip_line_start(std::string& text) const {
        const auto newline = text.rfind('\n');
        const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
        if (newline == std::string::npos && !line_starting_)
            return;
        if (std::all_of(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), is_space))
            text.resize(begin);
    }

    /// Skips white space after the end of a tag. `control` is the sign before the end; `trims` tells whether one
    /// newline is removed.
    void after_tag(char control, bool trims) {
        const std::size_t begin = at_;
        if (control == '-')
            while (at_ < source_.size() && is_space(source_[at_]))
                advance(1);
        else if (control != '+' && trims && follows("\n"))
            advance(1);
        line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
    }

    void comment() {
        const auto close = source_.find("#}", at_);
        if (close == std::string::npos)
            refuse({"a comment that begins on line ", std::to_string(line_), " does not end"});
        const char control = close > at_ ? source_[close - 1] : '\0';
        advance(close + 2 - at_);
        after_tag(control, true);
    }

    /// Rejects a raw block; this Jinja subset has none. Returns false for any other block. Throws: failure.
    [[nodiscard]] bool raw() {
        std::size_t i = at_;
        while (i < source_.size() && is_space(source_[i]))
            ++i;
        if (std::string_view(source_).substr(i, 3) != "raw" || (i + 3 < source_.size() && is_letter(source_[i + 3])))
            return false;
        refuse({"a raw block on line ", std::to_string(line_), " is not known"});
    }

    void inside(std::string_view close, bool print) {
        add(print ? token_kind::begin_print : token_kind::begin_block, "");
        std::size_t depth = 0;
        while (true) {
            while (at_ < source_.size() && is_space(source_[at_]))
                advance(1);
            if (at_ == source_.size())
                refuse("a tag is not closed at the end");
            const char c = source_[at_];
            const bool controlled =
                (c == '-' || c == '+') && std::string_view(source_).substr(at_ + 1).starts_with(close);
            if (depth == 0 && (follows(close) || controlled)) {
                advance(close.size() + (controlled ? 1 : 0));
                add(print ? token_kind::end_print : token_kind::end_block, "");
                return after_tag(controlled ? c : '\0', !print);
            }
            if (c == '(' || c == '[' || c == '{')
                ++depth;
            if ((c == ')' || c == ']' || c == '}') && depth-- == 0)
                refuse({"a ", std::string(1, c), " on line ", std::to_string(line_), " closes nothing"});
            one();
        }
    }

    void one() {
        const char c = source_[at_];
        if (is_letter(c))
            return run_of(token_kind::name, [](char x) { return is_letter(x) || is_digit(x); });
        if (is_digit(c))
            return numeral();
        if (c == '\'' || c == '"')
            return string(c);
        constexpr std::array<std::string_view, 6> doubled{"==", "!=", ">=", "<=", "//", "**"};
        for (const auto sign : doubled)
            if (follows(sign)) {
                add(token_kind::sign, std::string(sign));
                return advance(2);
            }
        if (std::string_view("+-/*%~[](){}<>=.:|,").find(c) == std::string_view::npos)
            refuse({"the character ", std::string(1, c), " on line ", std::to_string(line_), " is not known"});
        add(token_kind::sign, std::string(1, c));
        advance(1);
    }

    template <class Belongs>
    void run_of(token_kind kind, Belongs belongs) {
        std::size_t end = at_;
        while (end < source_.size() && belongs(source_[end]))
            ++end;
        add(kind, source_.substr(at_, end - at_));
        advance(end - at_);
    }

    void numeral() {
        std::size_t end = at_;
        while (end < source_.size() && is_digit(source_[end]))
            ++end;
        const bool fraction = end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1]);
        if (fraction)
            for (++end; end < source_.size() && is_digit(source_[end]);)
                ++end;
        add(fraction ? token_kind::number : token_kind::integer, source_.substr(at_, end - at_));
        advance(end - at_);
    }

    void string(char quote) {
        std::string made;
        std::size_t i = at_ + 1;
        for (; i < source_.size() && source_[i] != quote; ++i) {
            if (source_[i] != '\\' || i + 1 == source_.size())
                made.push_back(source_[i]);
            else
                escape(made, ++i);
        }
        if (i >= source_.size())
            refuse({"a string that begins on line ", std::to_string(line_), " does not end"});
        add(token_kind::string, std::move(made));
        advance(i + 1 - at_);
    }

    /// Reads an escape whose letter is at `i`. Effects: `i` is at its last character afterwards.
    void escape(std::string& out, std::size_t& i) const {
        constexpr std::string_view letters = "nrtabfv\\'\"";
        constexpr std::string_view meanings = "\n\r\t\a\b\f\v\\'\"";
        const char c = source_[i];
        if (const auto n = letters.find(c); n != std::string_view::npos) {
            out.push_back(meanings[n]);
            return;
        }
        if (c == '\n')
            return;
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (digits == 0) {
            if (is_digit(c))
                refuse({"an octal escape on line ", std::to_string(line_), " is not known"});
            out.push_back('\\');
            out.push_back(c);
            return;
        }
        std::uint32_t code = 0;
        const auto hex = std::string_view(source_).substr(std::min(i + 1, source_.size()), digits);
        const auto [end, problem] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
        if (problem != std::errc{} || end != hex.data() + digits || code > 0x10ffff ||
            (code >= 0xd800 && code < 0xe000))
            refuse({"an escape on line ", std::to_string(line_), " is no character"});
        append_utf8(out, code);
        i += digits;
    }

    std::string source_;
    std::size_t at_ = 0;
    std::size_t line_ = 1;
    bool line_starting_ = true;
    std::vector<token> tokens_;
};
using lexer = basic_lexer<>;

} // namespace kvcache::text::jinja
