// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/filters.hpp>
#include <kvcache/text/jinja/lexer.hpp>
#include <kvcache/text/jinja/primary_parser.hpp>
#include <kvcache/text/jinja/syntax.hpp>
#include <kvcache/text/jinja/value_tests.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Parses expressions from tokens, with Jinja's operator precedence.
template <class... None>
class basic_expression_parser : protected primary_parser<basic_expression_parser<None...>> {
    using base = primary_parser<basic_expression_parser<None...>>;
    friend base;

public:
    using base::base;

protected:
    using typename base::level;

    using base::ahead;
    using base::current;
    using base::deeper;
    using base::expect_name;
    using base::hold;
    using base::is_name;
    using base::is_sign;
    using base::join;
    using base::make;
    using base::parse_arguments;
    using base::parse_postfix;
    using base::parse_primary;
    using base::take;
    using base::take_name;
    using base::take_sign;

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
            refuse({"line ", std::to_string(current().line), ": the filter \"", name, "\" is not known"});
        auto made = join(expression_kind::filter, std::move(name), std::move(of));
        if (is_sign("("))
            parse_arguments(*made);
        return made;
    }
    [[nodiscard]] expression_pointer parse_or() {
        auto left = parse_and();
        while (take_name("or"))
            left = join(expression_kind::binary, "or", std::move(left), parse_and());
        return left;
    }

    /// The number of conditions around the current token. Under one, an unknown filter or test is an error only once
    /// it is called, as in Jinja.
    std::size_t conditions_ = 0;

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
        auto left = parse_power();
        while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
            auto sign = take().text;
            left = join(expression_kind::binary, std::move(sign), std::move(left), parse_power());
        }
        return left;
    }
    [[nodiscard]] expression_pointer parse_power() {
        auto left = parse_unary(true);
        while (take_sign("**"))
            left = join(expression_kind::binary, "**", std::move(left), parse_unary(true));
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
            refuse({"line ", std::to_string(current().line), ": the test \"", name, "\" is not known"});
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

}}} // namespace kvcache::text::jinja
