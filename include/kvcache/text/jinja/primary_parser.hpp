// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/literal.hpp>
#include <kvcache/text/jinja/syntax.hpp>
#include <kvcache/text/jinja/token_cursor.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

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
