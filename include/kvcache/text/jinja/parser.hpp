// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/standard.hpp>
#include <kvcache/text/jinja/expression_parser.hpp>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

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
            made->bodies.push_back(parse_body("endgeneration"));
            return made;
        }
        refuse({"the statement \"", name, "\" is not known"});
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
            parse_else(*made, "endif");
            --conditions_;
            return made;
        }
    }

    /// Parses the body after an else, if there is one, and the block that ends the statement.
    void parse_else(statement& of, std::string_view end) {
        if (take_name("else"))
            of.bodies.push_back(parse_body(end));
        else
            end_of(end);
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
        if (ranges::find(made->targets, "loop") != made->targets.end())
            refuse("a loop gives no values to \"loop\"");
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
            refuse("a recursive loop is not known");
        end_block();
        made->bodies.push_back(parse_until({"else", "endfor"}));
        parse_else(*made, "endfor");
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
        made->bodies.push_back(parse_body("endwith"));
        return made;
    }

    [[nodiscard]] std::unique_ptr<statement> parse_macro() {
        auto made = make_statement(statement_kind::macro);
        made->text = expect_name();
        parse_parameters(*made);
        const bool outer_varargs = std::exchange(names_varargs_, false);
        const bool outer_kwargs = std::exchange(names_kwargs_, false);
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

    /// Parses the end of a block's tag, its body, and the block that ends it.
    [[nodiscard]] block parse_body(std::string_view end) {
        end_block();
        block made = parse_until({end});
        end_of(end);
        return made;
    }
};
using parser = basic_parser<>;

}}} // namespace kvcache::text::jinja
