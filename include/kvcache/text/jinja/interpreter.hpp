// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/evaluator.hpp>
#include <kvcache/text/jinja/scope.hpp>
#include <kvcache/text/jinja/syntax.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Renders a template. Work, memory, depth and output are limited, so a hostile template ends in an error.
template <class... None>
class basic_interpreter : evaluator<basic_interpreter<None...>> {
    using base = evaluator<basic_interpreter<None...>>;
    friend base;

public:
    /// `now`, if given, is the date of strftime_now; without it the function is undefined.
    basic_interpreter(std::map<std::string, value, std::less<>> names, std::optional<std::tm> now, budget& spent)
        : base(now, spent) {
        scope_->names = std::move(names);
        for (const char* function : {"raise_exception", "range", "namespace", "dict"})
            scope_->names.emplace(function, bound_function{function, nullptr});
        if (now)
            scope_->names.emplace("strftime_now", bound_function{"strftime_now", nullptr});
    }

    /// Renders a template body. Throws: failure.
    [[nodiscard]] tagged_text run(const block& body) {
        try {
            run_block(body);
        } catch (failure& f) {
            throw at_line(std::move(f), line_);
        }
        return std::move(out_);
    }

private:
    using base::arguments_of;
    using base::body_;
    using base::call;
    using base::eval;
    using base::line_;
    using base::scope_;
    using base::spent_;
    using typename base::step;

    enum class flow { on, leave, next };

    void write(const tagged_text& more) { append(out_, more, *spent_); }

    flow run_block(const block& body) {
        for (const auto& one : body)
            if (const flow f = run_statement(*one); f != flow::on)
                return f;
        return flow::on;
    }

    flow run_statement(const statement& s) {
        const step here(*this, s.line);
        switch (s.kind) {
        case statement_kind::data:
            spent_->text(s.text.size());
            write({s.text, {}});
            return flow::on;
        case statement_kind::print:
            write(text_of(eval(*s.values[0]), *spent_));
            return flow::on;
        case statement_kind::branch:
            for (std::size_t i = 0; i < s.bodies.size(); ++i)
                if (i >= s.values.size() || eval(*s.values[i]).truth())
                    return run_block(s.bodies[i]);
            return flow::on;
        case statement_kind::loop:
            return run_loop(s);
        case statement_kind::set:
            scope_->assign(s.targets, eval(*s.values[0]), *spent_);
            return flow::on;
        case statement_kind::set_block:
            scope_->assign(s.targets, filtered_body(s), *spent_);
            return flow::on;
        case statement_kind::filter:
            write(text_of(filtered_body(s), *spent_));
            return flow::on;
        case statement_kind::call:
            call_with_block(s);
            return flow::on;
        case statement_kind::with:
            return run_with(s);
        case statement_kind::macro:
            spent_->text(256 + s.text.size()); // it keeps the memory of its scope
            scope_->names[s.text] = std::make_shared<const macro>(macro{&s, scope_});
            return flow::on;
        case statement_kind::leave:
            return flow::leave;
        case statement_kind::next:
            return flow::next;
        }
        return flow::on;
    }

    [[nodiscard]] value captured(const block& body) {
        tagged_text before = std::exchange(out_, {});
        run_block(body);
        return std::exchange(out_, std::move(before));
    }

    /// Returns the text of a block after its filters.
    [[nodiscard]] value filtered_body(const statement& s) {
        {
            const inner_scope one(*this, nullptr);
            body_ = captured(s.bodies[0]);
        }
        return eval(*s.values[0]); // reads body_ first
    }

    flow run_with(const statement& s) {
        list values;
        spent_->items(2 * s.values.size());
        for (const auto& v : s.values)
            values.push_back(eval(*v));
        const inner_scope one(*this, nullptr);
        for (std::size_t i = 0; i < values.size(); ++i)
            scope_->assign({s.targets[i]}, values[i], *spent_);
        return run_block(s.bodies[0]);
    }

    void call_with_block(const statement& s) {
        const expression& e = *s.values[0];
        const value what = eval(*e.parts[0]);
        arguments args = arguments_of(e, "");
        spent_->text(256);
        args.named.emplace_back("caller", std::make_shared<const macro>(macro{&s, scope_}));
        write(text_of(call(what, std::move(args)), *spent_));
    }

    /// Enters an inner scope for its own lifetime.
    class inner_scope {
    public:
        inner_scope(basic_interpreter& in, std::shared_ptr<scope> around)
            : in_(&in), before_(std::exchange(in.scope_, std::make_shared<scope>())) {
            in.spent_->work(256);
            in.scope_->around = around ? std::move(around) : before_;
        }
        inner_scope(const inner_scope&) = delete;
        inner_scope& operator=(const inner_scope&) = delete;
        ~inner_scope() { in_->scope_ = std::move(before_); }

    private:
        basic_interpreter* in_;
        std::shared_ptr<scope> before_;
    };

    flow run_loop(const statement& s) {
        value over = items_of(eval(*s.values[0]), *spent_);
        if (s.values[1]) {
            list kept;
            for (const value& item : *over.as_list()) {
                spent_->memory(detail::each_item);
                const inner_scope one(*this, nullptr);
                scope_->assign(s.targets, item, *spent_);
                if (eval(*s.values[1]).truth())
                    kept.push_back(item);
            }
            over = std::move(kept);
        }
        const list& items = *over.as_list();
        std::optional<value> last;
        if (items.empty())
            return s.bodies.size() > 1 ? run_block(s.bodies[1]) : flow::on;
        for (std::size_t i = 0; i < items.size(); ++i) {
            const step here(*this, s.line);
            const inner_scope one(*this, nullptr);
            scope_->assign(s.targets, items[i], *spent_);
            scope_->items = &items;
            scope_->at = i;
            scope_->last = &last;
            if (run_block(s.bodies[0]) == flow::leave)
                break;
        }
        return flow::on;
    }

    [[nodiscard]] value call_macro(const macro& m, const arguments& args) {
        const auto around = m.around.lock();
        if (!around)
            refuse("a macro is called outside of the loop that it was made in");
        const inner_scope one(*this, around);
        const auto& parameters = m.made_by->parameters;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            spent_->text(parameters[i].first.size() + 8 * args.named.size());
            const value* given = args.find(i, parameters[i].first);
            scope_->names[parameters[i].first] = given                  ? *given
                                                 : parameters[i].second ? eval(*parameters[i].second)
                                                                        : value(value::undefined{parameters[i].first});
        }
        take_more(*m.made_by, args);
        return captured(m.made_by->bodies[0]);
    }

    /// Gives a macro the arguments that are none of its parameters: `varargs`, `kwargs` and `caller`.
    void take_more(const statement& made_by, const arguments& args) {
        const auto& parameters = made_by.parameters;
        list varargs;
        for (std::size_t i = parameters.size(); i < args.values.size(); ++i) {
            spent_->items(1);
            varargs.push_back(args.values[i]);
        }
        if (!varargs.empty() && !made_by.takes_varargs)
            mistake({"the macro \"", made_by.text, "\" is called with too many arguments"});
        mapping kwargs;
        for (const auto& [name, v] : args.named) {
            spent_->work(32 * parameters.size());
            if (std::ranges::find(parameters, name, [](const auto& p) -> const std::string& { return p.first; }) !=
                parameters.end())
                continue;
            if (name == "caller")
                scope_->names[name] = v;
            else if (!made_by.takes_kwargs)
                mistake({"the macro \"", made_by.text, "\" has no argument \"", name, "\""});
            else
                kwargs.set({name, {}}, v, *spent_);
        }
        if (made_by.takes_varargs)
            scope_->names["varargs"] = value(std::move(varargs), list_kind::tuple);
        if (made_by.takes_kwargs)
            scope_->names["kwargs"] = std::move(kwargs);
    }

    tagged_text out_;
};
using interpreter = basic_interpreter<>;

}}} // namespace kvcache::text::jinja
