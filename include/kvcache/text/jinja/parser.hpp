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
#include <initializer_list>
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

/// Parses a whole template.
template <class...>
class basic_parser : expression_parser {
public:
    explicit basic_parser(std::string_view source) : expression_parser(lexer(source).run()) {}

    /// Parses the template. Throws: failure.
    [[nodiscard]] block run() {
        try {
            block made = parse_until({});
            if (current().kind != token_kind::end)
                unexpected("text");
            return made;
        } catch (failure& f) {
            throw at_line(std::move(f), current().line);
        }
    }

private:
    /// Parses statements up to a block that begins with one of `ends`; its name is the current token then.
    [[nodiscard]] block parse_until(std::initializer_list<std::string_view> ends) {
        const level here = deeper();
        block made;
        while (true) {
            const token t = current();
            switch (t.kind) {
            case token_kind::end:
                if (ends.size() != 0)
                    refuse({"line ", std::to_string(t.line), ": the template ends inside a block"});
                return made;
            case token_kind::data:
                made.push_back(make_statement(statement_kind::data));
                made.back()->text = take().text;
                break;
            case token_kind::begin_print:
                take();
                made.push_back(make_statement(statement_kind::print));
                made.back()->values.push_back(parse_tuple());
                if (take().kind != token_kind::end_print)
                    refuse({"line ", std::to_string(t.line), ": something stands before }}"});
                break;
            case token_kind::begin_block:
                take();
                for (const auto end : ends)
                    if (is_name(end))
                        return made;
                made.push_back(parse_statement());
                break;
            default:
                unexpected("text");
            }
        }
    }

    [[nodiscard]] std::unique_ptr<statement> make_statement(statement_kind kind) const {
        auto made = std::make_unique<statement>();
        made->kind = kind;
        made->line = current().line;
        return made;
    }
    void end_block() {
        if (current().kind != token_kind::end_block)
            unexpected("%}");
        take();
    }
    void end_of(std::string_view name) {
        if (!take_name(name))
            unexpected(name);
        end_block();
    }

    [[nodiscard]] std::unique_ptr<statement> parse_statement() {
        const std::string name = expect_name();
        if (name == "if")
            return parse_if();
        if (name == "for")
            return parse_for();
        if (name == "set")
            return parse_set();
        if (name == "macro")
            return parse_macro();
        if (name == "break" || name == "continue") {
            auto made = make_statement(name == "break" ? statement_kind::leave : statement_kind::next);
            end_block();
            return made;
        }
        if (name == "call")
            return parse_call();
        if (name == "filter")
            return parse_filter_block();
        if (name == "with")
            return parse_with();
        if (name == "generation") { // marks text of the assistant; it does not change the text
            auto made = make_statement(statement_kind::with);
            end_block();
            made->bodies.push_back(parse_body("endgeneration"));
            return made;
        }
        refuse({"line ", std::to_string(current().line), ": the statement \"", name, "\" is not known"});
    }

    [[nodiscard]] std::unique_ptr<statement> parse_if() {
        auto made = make_statement(statement_kind::branch);
        made->values.push_back(parse_tuple());
        end_block();
        ++conditions_;
        while (true) {
            made->bodies.push_back(parse_until({"elif", "else", "endif"}));
            if (take_name("elif")) {
                made->values.push_back(parse_tuple());
                end_block();
                continue;
            }
            if (take_name("else")) {
                end_block();
                made->bodies.push_back(parse_until({"endif"}));
            }
            end_of("endif");
            --conditions_;
            return made;
        }
    }

    [[nodiscard]] std::vector<std::string> parse_targets() {
        std::vector<std::string> names;
        const bool closed = take_sign("(");
        do {
            names.push_back(expect_name());
        } while (take_sign(","));
        if (closed)
            expect_sign(")");
        return names;
    }

    [[nodiscard]] std::unique_ptr<statement> parse_for() {
        auto made = make_statement(statement_kind::loop);
        made->targets = parse_targets();
        if (std::ranges::find(made->targets, "loop") != made->targets.end())
            refuse({"line ", std::to_string(current().line), ": a loop gives no values to \"loop\""});
        if (!take_name("in"))
            unexpected("in");
        made->values.push_back(parse_or());
        if (take_sign(",")) { // a tuple without parentheses
            auto items = make(expression_kind::tuple);
            hold(*items, items->parts.emplace_back(std::move(made->values[0])));
            do {
                hold(*items, items->parts.emplace_back(parse_or()));
            } while (take_sign(","));
            made->values[0] = std::move(items);
        }
        made->values.push_back(take_name("if") ? parse_expression() : nullptr);
        if (is_name("recursive"))
            refuse({"line ", std::to_string(current().line), ": a recursive loop is not known"});
        end_block();
        made->bodies.push_back(parse_until({"else", "endfor"}));
        if (take_name("else")) {
            end_block();
            made->bodies.push_back(parse_until({"endfor"}));
        }
        end_of("endfor");
        return made;
    }

    [[nodiscard]] std::unique_ptr<statement> parse_set() {
        auto made = make_statement(statement_kind::set);
        made->targets = parse_targets();
        if (made->targets.size() == 1 && take_sign(".")) {
            made->targets[0] += ".";
            made->targets[0] += expect_name();
        }
        if (take_sign("=")) {
            made->values.push_back(parse_tuple());
            end_block();
            return made;
        }
        made->kind = statement_kind::set_block;
        auto text = make(expression_kind::body);
        while (take_sign("|"))
            text = parse_filter(std::move(text));
        made->values.push_back(std::move(text));
        end_block();
        made->bodies.push_back(parse_body("endset"));
        return made;
    }

    [[nodiscard]] std::unique_ptr<statement> parse_filter_block() {
        auto made = make_statement(statement_kind::filter);
        auto text = make(expression_kind::body);
        do {
            text = parse_filter(std::move(text));
        } while (take_sign("|"));
        made->values.push_back(std::move(text));
        end_block();
        made->bodies.push_back(parse_body("endfilter"));
        return made;
    }

    [[nodiscard]] std::unique_ptr<statement> parse_with() {
        auto made = make_statement(statement_kind::with);
        while (current().kind != token_kind::end_block) {
            if (!made->targets.empty())
                expect_sign(",");
            made->targets.push_back(expect_name());
            expect_sign("=");
            made->values.push_back(parse_expression());
        }
        end_block();
        made->bodies.push_back(parse_body("endwith"));
        return made;
    }

    [[nodiscard]] std::unique_ptr<statement> parse_macro() {
        auto made = make_statement(statement_kind::macro);
        made->text = expect_name();
        parse_parameters(*made);
        const bool outer_varargs = std::exchange(names_varargs_, false);
        const bool outer_kwargs = std::exchange(names_kwargs_, false);
        end_block();
        made->bodies.push_back(parse_body("endmacro"));
        made->takes_varargs = std::exchange(names_varargs_, outer_varargs);
        made->takes_kwargs = std::exchange(names_kwargs_, outer_kwargs);
        return made;
    }

    /// A call of a macro, to which the block is the macro `caller`.
    [[nodiscard]] std::unique_ptr<statement> parse_call() {
        auto made = make_statement(statement_kind::call);
        made->text = "caller";
        if (is_sign("("))
            parse_parameters(*made);
        made->values.push_back(parse_expression());
        if (made->values[0]->kind != expression_kind::call)
            unexpected("a call");
        end_block();
        made->bodies.push_back(parse_body("endcall"));
        return made;
    }

    void parse_parameters(statement& of) {
        expect_sign("(");
        while (!take_sign(")")) {
            if (!of.parameters.empty())
                expect_sign(",");
            auto name = expect_name();
            of.parameters.emplace_back(std::move(name), take_sign("=") ? parse_expression() : nullptr);
        }
    }

    /// Parses the body of a block, and the block that ends it.
    [[nodiscard]] block parse_body(std::string_view end) {
        block made = parse_until({end});
        end_of(end);
        return made;
    }
};
using parser = basic_parser<>;

}}} // namespace kvcache::text::jinja
