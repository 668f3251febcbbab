// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/lexer.hpp>
#include <kvcache/text/jinja/literal.hpp>
#include <kvcache/text/jinja/syntax.hpp>
#include <kvcache/text/jinja/token_cursor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI::text::jinja {

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
            if (take_name("else"))
                otherwise = parse_expression();
            chosen =
                join(expression_kind::condition, "", std::move(condition), std::move(chosen), std::move(otherwise));
        }
        return chosen;
    }
    /// Parses one expression, or several separated by commas as one list, like a Python tuple.
    [[nodiscard]] expression_pointer parse_tuple() {
        auto first = parse_expression();
        if (!is_sign(","))
            return first;
        auto made = join(expression_kind::sequence, "", std::move(first));
        while (take_sign(",") && current().kind != token_kind::end_block && current().kind != token_kind::end_print)
            hold(*made, made->parts.emplace_back(parse_expression()));
        return made;
    }
    [[nodiscard]] expression_pointer parse_or() {
        auto left = parse_and();
        while (take_name("or"))
            left = join(expression_kind::binary, "or", std::move(left), parse_and());
        return left;
    }

private:
    [[nodiscard]] expression_pointer parse_and() {
        auto left = parse_not();
        while (take_name("and"))
            left = join(expression_kind::binary, "and", std::move(left), parse_not());
        return left;
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
        auto left = parse_concatenation();
        while (is_sign("+") || is_sign("-")) {
            auto sign = take().text;
            left = join(expression_kind::binary, std::move(sign), std::move(left), parse_concatenation());
        }
        return left;
    }
    [[nodiscard]] expression_pointer parse_concatenation() {
        auto left = parse_product();
        while (take_sign("~"))
            left = join(expression_kind::binary, "~", std::move(left), parse_product());
        return left;
    }
    [[nodiscard]] expression_pointer parse_product() {
        auto left = parse_unary(true);
        while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
            auto sign = take().text;
            left = join(expression_kind::binary, std::move(sign), std::move(left), parse_unary(true));
        }
        if (is_sign("**"))
            refuse({"line ", std::to_string(current().line), ": the operator ** is not known"});
        return left;
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

    [[nodiscard]] expression_pointer parse_primary() {
        const token t = take();
        switch (t.kind) {
        case token_kind::name:
        case token_kind::integer:
        case token_kind::number:
            if (auto constant = literal(t))
                return make_constant(std::move(*constant));
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
            return make(expression_kind::sequence);
        auto first = parse_expression();
        if (take_sign(")"))
            return first;
        auto made = join(expression_kind::sequence, "", std::move(first));
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
            if (current().kind == token_kind::name && ahead().kind == token_kind::sign && ahead().text == "=") {
                auto name = take().text;
                take();
                hold(into, into.named_arguments.emplace_back(std::move(name), parse_expression()).second);
            } else {
                hold(into, into.arguments.emplace_back(parse_expression()));
            }
        }
    }

    [[nodiscard]] expression_pointer parse_filters(expression_pointer made) {
        while (true) {
            if (take_sign("|")) {
                auto name = expect_name();
                made = join(expression_kind::filter, std::move(name), std::move(made));
                if (is_sign("("))
                    parse_arguments(*made);
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
};
using expression_parser = basic_expression_parser<>;

} // namespace kvcache::text::jinja
