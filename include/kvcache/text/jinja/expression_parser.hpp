// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/standard.hpp>
#include <kvcache/text/jinja/filters.hpp>
#include <kvcache/text/jinja/operators.hpp>
#include <kvcache/text/jinja/syntax.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
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
        refuse({"\"", current().text, "\" stands where ", wanted, " is expected"});
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

/// Parses expressions from tokens, with Jinja's operator precedence.
template <class...>
class basic_expression_parser : protected token_cursor {
public:
    using token_cursor::token_cursor;

protected:
    [[nodiscard]] expression_pointer parse_expression() {
        const level here = deeper();
        auto chosen = parse_or();
        while (take_name("if")) {
            auto condition = parse_or();
            expression_pointer otherwise;
            if (take_name("else")) {
                ++conditions_;
                otherwise = parse_expression();
                --conditions_;
            }
            chosen =
                join(expression_kind::condition, "", std::move(condition), std::move(chosen), std::move(otherwise));
        }
        return chosen;
    }
    /// Parses one expression, or several separated by commas as a tuple.
    [[nodiscard]] expression_pointer parse_tuple() {
        auto first = parse_expression();
        if (!is_sign(","))
            return first;
        auto made = join(expression_kind::tuple, "", std::move(first));
        while (take_sign(",") && current().kind != token_kind::end_block && current().kind != token_kind::end_print)
            hold(*made, made->parts.emplace_back(parse_expression()));
        return made;
    }
    /// Parses a filter's name and arguments.
    [[nodiscard]] expression_pointer parse_filter(expression_pointer of) {
        auto name = expect_name();
        if (conditions_ == 0 && !find_filter(name))
            refuse({"the filter \"", name, "\" is not known"});
        auto made = join(expression_kind::filter, std::move(name), std::move(of));
        if (is_sign("("))
            parse_arguments(*made);
        return made;
    }
    [[nodiscard]] expression_pointer parse_or() {
        return parse_row(token_kind::name, {"or"}, [&] { return parse_and(); });
    }

    /// The number of conditions around the current token. Under one, an unknown filter or test is an error only once
    /// it is called, as in Jinja.
    std::size_t conditions_ = 0;
    /// Whether an expression has named `varargs` or `kwargs` since these were last set.
    bool names_varargs_ = false;
    bool names_kwargs_ = false;

private:
    /// Parses operands and these operators between them, which group from the left.
    template <class Operand>
    [[nodiscard]] expression_pointer parse_row(token_kind kind, std::initializer_list<std::string_view> operators,
                                               Operand operand) {
        auto left = operand();
        while (current().kind == kind && ranges::find(operators, current().text) != operators.end()) {
            auto sign = take().text;
            left = join(expression_kind::binary, std::move(sign), std::move(left), operand());
        }
        return left;
    }
    [[nodiscard]] expression_pointer parse_and() {
        return parse_row(token_kind::name, {"and"}, [&] { return parse_not(); });
    }
    [[nodiscard]] expression_pointer parse_not() {
        const level here = deeper();
        if (take_name("not"))
            return join(expression_kind::unary, "not", parse_not());
        return parse_comparison();
    }
    [[nodiscard]] expression_pointer parse_comparison() {
        auto left = parse_sum();
        std::vector<std::string> operators;
        std::vector<expression_pointer> operands;
        while (true) {
            constexpr std::array<std::string_view, 6> signs{"==", "!=", "<", "<=", ">", ">="};
            const bool sign = current().kind == token_kind::sign &&
                              std::find(signs.begin(), signs.end(), current().text) != signs.end();
            if (sign || is_name("in")) {
                operators.push_back(take().text);
            } else if (is_name("not") && ahead().kind == token_kind::name && ahead().text == "in") {
                take();
                take();
                operators.emplace_back("not in");
            } else {
                break;
            }
            operands.push_back(parse_sum());
        }
        if (operators.empty())
            return left;
        auto made = join(expression_kind::comparison, "", std::move(left));
        made->operators = std::move(operators);
        for (auto& o : operands)
            hold(*made, made->parts.emplace_back(std::move(o)));
        return made;
    }
    [[nodiscard]] expression_pointer parse_sum() {
        return parse_row(token_kind::sign, {"+", "-"}, [&] { return parse_concatenation(); });
    }
    [[nodiscard]] expression_pointer parse_concatenation() {
        return parse_row(token_kind::sign, {"~"}, [&] { return parse_product(); });
    }
    [[nodiscard]] expression_pointer parse_product() {
        return parse_row(token_kind::sign, {"*", "/", "//", "%"}, [&] { return parse_power(); });
    }
    [[nodiscard]] expression_pointer parse_power() {
        return parse_row(token_kind::sign, {"**"}, [&] { return parse_unary(true); });
    }
    [[nodiscard]] expression_pointer parse_unary(bool with_filters) {
        const level here = deeper();
        expression_pointer made;
        if (is_sign("-") || is_sign("+")) {
            auto sign = take().text;
            made = join(expression_kind::unary, std::move(sign), parse_unary(false));
        } else {
            made = parse_postfix(parse_primary());
        }
        return with_filters ? parse_filters(std::move(made)) : std::move(made);
    }

    [[nodiscard]] expression_pointer parse_filters(expression_pointer made) {
        while (true) {
            if (take_sign("|")) {
                made = parse_filter(std::move(made));
            } else if (take_name("is")) {
                made = parse_test(std::move(made));
            } else if (is_sign("(") || is_sign("[") || is_sign(".")) {
                made = parse_postfix(std::move(made));
            } else {
                return made;
            }
        }
    }
    [[nodiscard]] expression_pointer parse_test(expression_pointer of) {
        const bool negated = take_name("not");
        auto name = expect_name();
        if (conditions_ == 0 && !find_test(name))
            refuse({"the test \"", name, "\" is not known"});
        auto made = join(expression_kind::test, std::move(name), std::move(of));
        const auto kind = current().kind;
        const bool word = kind == token_kind::name && !is_name("else") && !is_name("or") && !is_name("and") &&
                          !is_name("is") && !is_name("if") && !is_name("not") && !is_name("in");
        if (is_sign("("))
            parse_arguments(*made);
        else if (word || kind == token_kind::string || kind == token_kind::integer || kind == token_kind::number ||
                 is_sign("[") || is_sign("{"))
            hold(*made, made->arguments.emplace_back(parse_postfix(parse_primary())));
        return negated ? join(expression_kind::unary, "not", std::move(made)) : std::move(made);
    }

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
        auto first = parse_expression();
        if (take_sign(")"))
            return first;
        auto made = join(expression_kind::tuple, "", std::move(first));
        while (!take_sign(")")) {
            expect_sign(",");
            if (!is_sign(")"))
                hold(*made, made->parts.emplace_back(parse_expression()));
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
            hold(*made, made->parts.emplace_back(parse_expression()));
            if (kind == expression_kind::mapping) {
                expect_sign(":");
                hold(*made, made->parts.emplace_back(parse_expression()));
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
                bounds[n] = parse_expression();
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
                hold(into,
                     into.arguments.emplace_back(join(expression_kind::spread, std::move(sign), parse_expression())));
            } else if (current().kind == token_kind::name && ahead().kind == token_kind::sign && ahead().text == "=") {
                auto name = take().text;
                take();
                hold(into, into.named_arguments.emplace_back(std::move(name), parse_expression()).second);
            } else {
                hold(into, into.arguments.emplace_back(parse_expression()));
            }
        }
    }
};
using expression_parser = basic_expression_parser<>;

}}} // namespace kvcache::text::jinja
