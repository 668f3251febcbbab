// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/lexer.hpp>
#include <kvcache/text/jinja/syntax.hpp>
#include <kvcache/text/jinja/value.hpp>

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

/// A position in the tokens of a template, and the factory of its expressions.
template <class...>
class basic_token_cursor {
public:
    explicit basic_token_cursor(std::vector<token> tokens) : tokens_(std::move(tokens)) {}

protected:
    [[nodiscard]] const token& current() const { return tokens_[at_]; }
    [[nodiscard]] const token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    token take() {
        token t = tokens_[at_];
        if (at_ + 1 < tokens_.size())
            ++at_;
        return t;
    }
    [[nodiscard]] bool is_sign(std::string_view s) const {
        return current().kind == token_kind::sign && current().text == s;
    }
    [[nodiscard]] bool is_name(std::string_view s) const {
        return current().kind == token_kind::name && current().text == s;
    }
    bool take_sign(std::string_view s) {
        const bool found = is_sign(s);
        if (found)
            take();
        return found;
    }
    bool take_name(std::string_view s) {
        const bool found = is_name(s);
        if (found)
            take();
        return found;
    }
    void expect_sign(std::string_view s) {
        if (!take_sign(s))
            unexpected(s);
    }
    [[nodiscard]] std::string expect_name() {
        if (current().kind != token_kind::name)
            unexpected("a name");
        return take().text;
    }
    [[noreturn]] void unexpected(std::string_view wanted) const {
        refuse({"line ", std::to_string(current().line), ": \"", current().text, "\" stands where ", wanted,
                " is expected"});
    }

    /// Counts the nesting depth of expressions and blocks, so that a hostile template cannot exhaust the stack.
    class level {
    public:
        explicit level(std::size_t& depth) : depth_(&depth) {
            constexpr std::size_t deepest = 100;
            if (++depth > deepest)
                refuse({"more than ", std::to_string(deepest), " levels are nested"});
        }
        level(const level&) = delete;
        level& operator=(const level&) = delete;
        ~level() { --*depth_; }

    private:
        std::size_t* depth_;
    };
    [[nodiscard]] level deeper() { return level(depth_); }

    [[nodiscard]] expression_pointer make(expression_kind kind, std::string text = {}) const {
        auto made = std::make_unique<expression>();
        made->kind = kind;
        made->line = current().line;
        made->text = std::move(text);
        return made;
    }
    template <class... Parts>
    [[nodiscard]] expression_pointer join(expression_kind kind, std::string text, Parts... parts) const {
        auto made = make(kind, std::move(text));
        (hold(*made, made->parts.emplace_back(std::move(parts))), ...);
        return made;
    }
    /// Limits the height of the tree, which is walked recursively.
    void hold(expression& parent, const expression_pointer& child) const {
        constexpr std::size_t highest = 400;
        if (child && child->height >= parent.height)
            parent.height = child->height + 1;
        if (parent.height > highest)
            refuse({"line ", std::to_string(parent.line), ": an expression has more than ", std::to_string(highest),
                    " operators in a row"});
    }

private:
    std::vector<token> tokens_;
    std::size_t at_ = 0;
    std::size_t depth_ = 0;
};
using token_cursor = basic_token_cursor<>;

/// The value of a token that is a number, true, false or none; nullopt for another name. Throws: failure, if an integer
/// is too large.
KVCACHE_LAZY [[nodiscard]] inline std::optional<value> literal(const token& t) {
    if (t.kind == token_kind::integer) {
        constexpr std::string_view letters = "xXoObB";
        const auto base = t.text.size() > 2 ? letters.find(t.text[1]) : std::string_view::npos;
        const std::size_t from = base == std::string_view::npos ? 0 : 2;
        const int radix = from == 0 ? 10 : base < 2 ? 16 : base < 4 ? 8 : 2;
        const char* const end = t.text.data() + t.text.size();
        std::int64_t n = 0;
        if (const auto read = std::from_chars(t.text.data() + from, end, n, radix);
            read.ec != std::errc{} || read.ptr != end)
            refuse({"line ", std::to_string(t.line), ": the number ", t.text, " is too large, or none"});
        return value(n);
    }
    if (t.kind == token_kind::number) {
        double d = 0;
        std::from_chars(t.text.data(), t.text.data() + t.text.size(), d);
        return value(d);
    }
    if (t.text == "true" || t.text == "True")
        return value(true);
    if (t.text == "false" || t.text == "False")
        return value(false);
    if (t.text == "none" || t.text == "None")
        return value(value::none{});
    return std::nullopt;
}

/// Parses values, and what follows them: attributes, items and calls. `Parser` derives from it and parses expressions.
template <class Parser>
class primary_parser : protected token_cursor {
public:
    using token_cursor::token_cursor;

protected:
    /// Whether an expression has named `varargs` or `kwargs` since these were last set.
    bool names_varargs_ = false;
    bool names_kwargs_ = false;

    [[nodiscard]] expression_pointer parse_primary() {
        const token t = take();
        switch (t.kind) {
        case token_kind::name:
        case token_kind::integer:
        case token_kind::number:
            if (auto constant = literal(t))
                return make_constant(std::move(*constant));
            names_varargs_ = names_varargs_ || t.text == "varargs";
            names_kwargs_ = names_kwargs_ || t.text == "kwargs";
            return make(expression_kind::name, t.text);
        case token_kind::string: {
            std::string text = t.text;
            while (current().kind == token_kind::string)
                text += take().text;
            return make_constant(std::string_view(text));
        }
        case token_kind::sign:
            if (t.text == "(")
                return parse_parentheses();
            if (t.text == "[")
                return parse_items("]", expression_kind::sequence);
            if (t.text == "{")
                return parse_items("}", expression_kind::mapping);
            break;
        default:
            break;
        }
        refuse({"line ", std::to_string(t.line), ": \"", t.text, "\" stands where a value is expected"});
    }
    [[nodiscard]] expression_pointer make_constant(value constant) {
        auto made = make(expression_kind::constant);
        made->constant = std::move(constant);
        return made;
    }
    [[nodiscard]] expression_pointer parse_parentheses() {
        if (take_sign(")"))
            return make(expression_kind::tuple);
        auto first = inner().parse_expression();
        if (take_sign(")"))
            return first;
        auto made = join(expression_kind::tuple, "", std::move(first));
        while (!take_sign(")")) {
            expect_sign(",");
            if (!is_sign(")"))
                hold(*made, made->parts.emplace_back(inner().parse_expression()));
        }
        return made;
    }
    [[nodiscard]] expression_pointer parse_items(std::string_view close, expression_kind kind) {
        auto made = make(kind);
        while (!take_sign(close)) {
            if (!made->parts.empty()) {
                expect_sign(",");
                if (take_sign(close))
                    break;
            }
            hold(*made, made->parts.emplace_back(inner().parse_expression()));
            if (kind == expression_kind::mapping) {
                expect_sign(":");
                hold(*made, made->parts.emplace_back(inner().parse_expression()));
            }
        }
        return made;
    }

    [[nodiscard]] expression_pointer parse_postfix(expression_pointer made) {
        while (true) {
            if (take_sign(".")) {
                if (current().kind == token_kind::integer) {
                    auto index = parse_primary();
                    made = join(expression_kind::item, "", std::move(made), std::move(index));
                } else {
                    auto name = expect_name();
                    made = join(expression_kind::attribute, std::move(name), std::move(made));
                }
            } else if (take_sign("[")) {
                made = parse_subscript(std::move(made));
            } else if (is_sign("(")) {
                made = join(expression_kind::call, "", std::move(made));
                parse_arguments(*made);
            } else {
                return made;
            }
        }
    }
    [[nodiscard]] expression_pointer parse_subscript(expression_pointer of) {
        std::array<expression_pointer, 3> bounds;
        std::size_t n = 0;
        bool slice = false;
        while (!take_sign("]")) {
            if (take_sign(":")) {
                slice = true;
                if (++n == bounds.size())
                    unexpected("]");
            } else {
                if (bounds[n])
                    unexpected("]");
                bounds[n] = inner().parse_expression();
            }
        }
        if (slice)
            return join(expression_kind::slice, "", std::move(of), std::move(bounds[0]), std::move(bounds[1]),
                        std::move(bounds[2]));
        if (!bounds[0])
            unexpected("an index");
        return join(expression_kind::item, "", std::move(of), std::move(bounds[0]));
    }
    void parse_arguments(expression& into) {
        expect_sign("(");
        bool first = true;
        while (!take_sign(")")) {
            if (!std::exchange(first, false)) {
                expect_sign(",");
                if (take_sign(")"))
                    break;
            }
            if (is_sign("*") || is_sign("**")) {
                auto sign = take().text;
                hold(into, into.arguments.emplace_back(
                               join(expression_kind::spread, std::move(sign), inner().parse_expression())));
            } else if (current().kind == token_kind::name && ahead().kind == token_kind::sign && ahead().text == "=") {
                auto name = take().text;
                take();
                hold(into, into.named_arguments.emplace_back(std::move(name), inner().parse_expression()).second);
            } else {
                hold(into, into.arguments.emplace_back(inner().parse_expression()));
            }
        }
    }

private:
    [[nodiscard]] Parser& inner() { return static_cast<Parser&>(*this); }
};

}}} // namespace kvcache::text::jinja
