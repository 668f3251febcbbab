// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/platform/number_text.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// A number in a template: its length in bytes, and whether it is a floating-point number.
struct numeral {
    std::size_t bytes = 0;
    bool fraction = false;
};

/// Returns the number that a text begins with, in one of Python's notations. Its digits may be separated by "_".
/// Requires: the text begins with a digit.
KVCACHE_LAZY [[nodiscard]] inline numeral numeral_at(std::string_view text) {
    const auto is_digit = [&](std::size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
    const auto is = [&](std::size_t i, std::string_view any) {
        return i < text.size() && any.find(text[i]) != std::string_view::npos;
    };
    const auto after_digits = [&](std::size_t i) {
        while (is_digit(i) || is(i, "_"))
            ++i;
        return i;
    };
    numeral made;
    if (text[0] == '0' && is(1, "xXoObB")) {
        made.bytes = 2;
        while (is_digit(made.bytes) || is(made.bytes, "abcdefABCDEF_"))
            ++made.bytes;
        return made;
    }
    made.bytes = after_digits(0);
    if (is(made.bytes, ".") && is_digit(made.bytes + 1)) {
        made.fraction = true;
        made.bytes = after_digits(made.bytes + 1);
    }
    const std::size_t exponent = made.bytes + (is(made.bytes + 1, "+-") ? 2 : 1);
    if (is(made.bytes, "eE") && is_digit(exponent)) {
        made.fraction = true;
        made.bytes = after_digits(exponent);
    }
    return made;
}

namespace detail {

/// Reads an escape whose letter is at `i`, as Python does. Effects: `i` is at its last character afterwards. Throws:
/// failure, if it is no character.
KVCACHE_LAZY inline void append_escape(std::string& out, std::string_view raw, std::size_t& i) {
    constexpr std::string_view letters = "nrtabfv\\'\"";
    constexpr std::string_view meanings = "\n\r\t\a\b\f\v\\'\"";
    const char c = raw[i];
    if (const auto n = letters.find(c); n != std::string_view::npos) {
        out.push_back(meanings[n]);
        return;
    }
    if (c == '\n')
        return;
    const bool octal = c >= '0' && c <= '7';
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0 && !octal) {
        out.push_back('\\');
        out.push_back(c);
        return;
    }
    const auto number = octal ? raw.substr(i, std::min<std::size_t>(3, raw.find_first_not_of("01234567", i) - i))
                              : raw.substr(i + 1, digits);
    std::uint32_t code = 0;
    const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), code, octal ? 8 : 16);
    if (problem != std::errc{} || end != number.data() + (octal ? number.size() : digits) || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000))
        refuse({"the escape \\", raw.substr(i, digits + 1), " is no character"});
    append_utf8(out, code);
    i += octal ? number.size() - 1 : digits;
}

} // namespace detail

/// Returns the text that a string literal stands for: `raw` is what is between its quotes. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline std::string unescaped(std::string_view raw) {
    std::string made;
    for (std::size_t i = 0; i < raw.size(); ++i) {
        if (raw[i] != '\\' || i + 1 == raw.size())
            made.push_back(raw[i]);
        else
            detail::append_escape(made, raw, ++i);
    }
    return made;
}

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
        try {
            while (at_ < source_.size())
                data();
        } catch (failure& f) {
            throw at_line(std::move(f), line_);
        }
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
        if (control == '-' || kind != '{')
            strip_before(text, control);
        if (!text.empty())
            add(token_kind::data, std::move(text));
        advance(open - at_ + 2 + (control == '-' || control == '+' ? 1 : 0));
        if (kind == '#')
            return comment();
        if (kind == '%' && raw())
            return;
        inside(kind == '{' ? "}}" : "%}", kind == '{');
    }

    /// Removes the white space that a block whose sign of control is this removes from the text before it.
    void strip_before(std::string& text, char control) const {
        if (control == '-')
            while (!text.empty() && is_space(text.back()))
                text.pop_back();
        else if (control != '+')
            strip_line_start(text);
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
            refuse("a comment does not end");
        const char control = close > at_ ? source_[close - 1] : '\0';
        advance(close + 2 - at_);
        after_tag(control, true);
    }

    /// Returns the index after white space and `word` from `at` on, or npos if the word does not stand there.
    [[nodiscard]] std::size_t after_word(std::size_t at, std::string_view word) const {
        while (at < source_.size() && is_space(source_[at]))
            ++at;
        return std::string_view(source_).substr(at).starts_with(word) ? at + word.size() : std::string::npos;
    }
    /// Returns the index after white space, a sign that controls it, and the end of a block from `at` on, or npos.
    [[nodiscard]] std::size_t after_end(std::size_t at) const {
        for (const std::string_view end : {"%}", "-%}", "+%}"})
            if (const std::size_t found = at == std::string::npos ? at : after_word(at, end);
                found != std::string::npos)
                return found;
        return std::string::npos;
    }

    /// Reads a raw block, whose text is no template. Returns false for any other block. Throws: failure.
    [[nodiscard]] bool raw() {
        const std::size_t begin = after_end(after_word(at_, "raw"));
        if (begin == std::string::npos)
            return false;
        for (std::size_t open = source_.find("{%", begin); open != std::string::npos;
             open = source_.find("{%", open + 1)) {
            const char control = open + 2 < source_.size() ? source_[open + 2] : '\0';
            const std::size_t tag = open + (control == '-' || control == '+' ? 3 : 2);
            const std::size_t end = after_end(after_word(tag, "endraw"));
            if (end == std::string::npos)
                continue;
            advance(begin - at_);
            after_tag(source_[begin - 3], false);
            std::string text = source_.substr(std::min(at_, open), open - std::min(at_, open));
            strip_before(text, control);
            if (!text.empty())
                add(token_kind::data, std::move(text));
            advance(end - at_);
            after_tag(source_[end - 3], true);
            return true;
        }
        refuse("a raw block does not end");
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
                refuse({"a ", std::string(1, c), " closes nothing"});
            one();
        }
    }

    void one() {
        const char c = source_[at_];
        if (is_letter(c))
            return run_of(token_kind::name, [](char x) { return is_letter(x) || is_digit(x); });
        if (is_digit(c))
            return number();
        if (c == '\'' || c == '"')
            return string(c);
        constexpr std::array<std::string_view, 6> doubled{"==", "!=", ">=", "<=", "//", "**"};
        for (const auto sign : doubled)
            if (follows(sign)) {
                add(token_kind::sign, std::string(sign));
                return advance(2);
            }
        if (std::string_view("+-/*%~[](){}<>=.:|,").find(c) == std::string_view::npos)
            refuse({"the character ", std::string(1, c), " is not known"});
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

    void number() {
        const numeral found = numeral_at(std::string_view(source_).substr(at_));
        std::string digits = source_.substr(at_, found.bytes);
        std::erase(digits, '_');
        add(found.fraction ? token_kind::number : token_kind::integer, std::move(digits));
        advance(found.bytes);
    }

    void string(char quote) {
        std::size_t end = at_ + 1;
        while (end < source_.size() && source_[end] != quote)
            end += source_[end] == '\\' ? std::size_t{2} : std::size_t{1};
        if (end >= source_.size())
            refuse("a string does not end");
        add(token_kind::string, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
        advance(end + 1 - at_);
    }

    std::string source_;
    std::size_t at_ = 0;
    std::size_t line_ = 1;
    bool line_starting_ = true;
    std::vector<token> tokens_;
};
using lexer = basic_lexer<>;

struct expression;
/// An expression that its parent owns.
using expression_pointer = std::unique_ptr<expression>;

/// Kinds of expressions.
enum class expression_kind {
    constant,   ///< `constant`
    name,       ///< `text`
    sequence,   ///< `parts`, a list
    tuple,      ///< `parts`
    mapping,    ///< `parts`: key, value, key, value
    attribute,  ///< parts[0].text
    item,       ///< parts[0][parts[1]]
    slice,      ///< parts[0][parts[1]:parts[2]:parts[3]], each may be null
    call,       ///< parts[0](arguments)
    filter,     ///< parts[0] | text(arguments)
    test,       ///< parts[0] is text(arguments)
    unary,      ///< text parts[0]
    binary,     ///< parts[0] text parts[1]
    comparison, ///< parts[0] operators[0] parts[1] operators[1] parts[2]
    spread,     ///< `text` parts[0]: an argument that is several, after * or **
    body,       ///< The text of the block that a filter is applied to.
    condition,  ///< parts[1] if parts[0] else parts[2], which may be null
};

/// A node of a template that has a value.
struct expression {
    expression_kind kind = expression_kind::constant;
    std::size_t line = 0;
    std::size_t height = 1; ///< Height of the tree under it.
    std::string text = {};
    value constant = {};
    std::vector<expression_pointer> parts = {};
    std::vector<std::string> operators = {};
    std::vector<expression_pointer> arguments = {};
    std::vector<std::pair<std::string, expression_pointer>> named_arguments = {};
};

struct statement;
/// Statements in order: the body of a branch, a loop or a macro.
using block = std::vector<std::unique_ptr<statement>>;

/// Kinds of statements.
enum class statement_kind { data, print, branch, loop, set, set_block, macro, call, filter, with, leave, next };

/// A node of a template that is executed.
struct statement {
    statement_kind kind = statement_kind::data;
    std::size_t line = 0;
    std::string text = {};                 ///< Text to output, or the name of a macro.
    std::vector<std::string> targets = {}; ///< Names assigned by a loop, set or with; "a.b" for a namespace.
    std::vector<expression_pointer> values = {};
    std::vector<block> bodies = {}; ///< The bodies of the branches; of a loop and its else.
    std::vector<std::pair<std::string, expression_pointer>> parameters = {}; ///< Of a macro or a call block.
    bool takes_varargs = false; ///< A macro that names its further arguments `varargs`, or `kwargs`.
    bool takes_kwargs = false;
};

/// The value of a token that is a number, true, false or none; nullopt for another name. Throws: failure, if an integer
/// is too large.
KVCACHE_LAZY [[nodiscard]] inline std::optional<value> literal(const token& t) {
    if (t.kind == token_kind::integer) {
        constexpr std::string_view letters = "xXoObB";
        const auto base = t.text.size() > 2 ? letters.find(t.text[1]) : std::string_view::npos;
        const std::size_t from = base == std::string_view::npos ? 0 : 2;
        const int radix = from == 0 ? 10 : base < 2 ? 16 : base < 4 ? 8 : 2;
        const auto n = parsed_integer(std::string_view(t.text).substr(from), radix);
        if (!n)
            refuse({"line ", std::to_string(t.line), ": the number ", t.text, " is too large, or none"});
        return value(*n);
    }
    if (t.kind == token_kind::number)
        return value(parse_double(t.text).value_or(0));
    if (t.text == "true" || t.text == "True")
        return value(true);
    if (t.text == "false" || t.text == "False")
        return value(false);
    if (t.text == "none" || t.text == "None")
        return value(value::none{});
    return std::nullopt;
}

}}} // namespace kvcache::text::jinja
