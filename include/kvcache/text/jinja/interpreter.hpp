// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/text/jinja/filters.hpp>
#include <kvcache/text/jinja/methods.hpp>
#include <kvcache/text/jinja/operators.hpp>
#include <kvcache/text/jinja/sequence.hpp>
#include <kvcache/text/jinja/syntax.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Names and their values; an unknown name is looked up in the enclosing scope.
struct scope {
    std::shared_ptr<scope> around = {};
    std::map<std::string, value, std::less<>> names = {};
    const list* items = nullptr; ///< The items of the loop whose body this is, and the index of the current one.
    std::size_t at = 0;
    std::optional<value>* last = nullptr; ///< The memory of `loop.changed`.

    /// Returns the value of a name, or null. `loop` is created on demand. Throws: failure.
    KVCACHE_LAZY [[nodiscard]] const value* find(std::string_view name, budget& spent) {
        for (scope* s = this; s; s = s->around.get()) {
            spent.work(16 + name.size());
            if (const auto found = s->names.find(name); found != s->names.end())
                return &found->second;
            if (s->items && name == "loop")
                return &s->names.emplace(name, s->loop(spent)).first->second;
        }
        return nullptr;
    }

    /// Returns the value of `loop` in the body of a loop. Throws: failure.
    KVCACHE_LAZY [[nodiscard]] value loop(budget& spent) {
        if (!*last) {
            mapping memory;
            memory.is_namespace = true;
            *last = value(std::move(memory));
        }
        return loop_state(*items, at, **last, spent);
    }

    /// Gives a value to a name, its parts to several names, or the value to a member of a namespace. Throws: failure.
    KVCACHE_LAZY void assign(const std::vector<std::string>& targets, value v, budget& spent) {
        for (const std::string& name : targets)
            spent.items(2 + name.size() / 32); // a node and its key
        if (targets.size() > 1) {
            const value held = items_of(v, spent);
            const list& parts = *held.as_list();
            if (parts.size() != targets.size())
                mistake({"a value of ", std::to_string(parts.size()), " parts is given to ",
                         std::to_string(targets.size()), " names"});
            for (std::size_t i = 0; i < targets.size(); ++i)
                names[targets[i]] = parts[i];
            return;
        }
        const auto dot = targets[0].find('.');
        if (dot == std::string::npos) {
            names[targets[0]] = std::move(v);
            return;
        }
        const value* of = find(std::string_view(targets[0]).substr(0, dot), spent);
        mapping* space = of ? of->as_mapping() : nullptr;
        if (!space || !space->is_namespace)
            mistake({"\"", targets[0].substr(0, dot), "\" is not a namespace"});
        if (v.inside().has_namespace)
            refuse("a namespace that holds a namespace is not known");
        space->set({targets[0].substr(dot + 1), {}}, std::move(v), spent);
    }
};

/// A macro and its scope. The scope outlives it: a macro is only called while its template is rendered.
struct macro {
    const statement* made_by = nullptr;
    std::weak_ptr<scope> around = {};
};

/// Renders a template. Work, memory, depth and output are limited, so a hostile template ends in an error.
template <class...>
class basic_interpreter {
public:
    /// `now`, if given, is the date of strftime_now; without it the function is undefined.
    basic_interpreter(std::map<std::string, value, std::less<>> names, std::optional<std::tm> now, budget& spent)
        : spent_(&spent), scope_(std::make_shared<scope>()), now_(now) {
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
    /// Pays for a step, and counts the depth of the call stack.
    class step {
    public:
        step(basic_interpreter& in, std::size_t line) : in_(&in) {
            constexpr std::size_t deepest = 1500;
            in.line_ = line;
            in.spent_->work(32);
            if (++in.depth_ > deepest)
                refuse("its macros call each other without end");
        }
        step(const step&) = delete;
        step& operator=(const step&) = delete;
        ~step() { --in_->depth_; }

    private:
        basic_interpreter* in_;
    };

    [[nodiscard]] value eval(const expression& e) {
        const step here(*this, e.line);
        switch (e.kind) {
        case expression_kind::constant:
            return e.constant;
        case expression_kind::name: {
            if (const value* found = scope_->find(e.text, *spent_))
                return *found;
            spent_->text(e.text.size());
            return value::undefined{e.text};
        }
        case expression_kind::sequence:
        case expression_kind::tuple: {
            list items;
            spent_->items(2 * e.parts.size());
            for (const auto& part : e.parts)
                items.push_back(eval(*part));
            return {std::move(items), e.kind == expression_kind::tuple ? list_kind::tuple : list_kind::ordinary};
        }
        case expression_kind::mapping: {
            mapping made;
            spent_->items(8 * e.parts.size());
            for (std::size_t i = 0; i < e.parts.size(); i += 2) {
                auto key = key_of(eval(*e.parts[i]), *spent_);
                if (!key)
                    mistake("a key of a mapping is text or a scalar");
                made.set(*std::move(key), eval(*e.parts[i + 1]), *spent_);
            }
            return made;
        }
        case expression_kind::attribute:
            return attribute_of(eval(*e.parts[0]), e.text, *spent_);
        case expression_kind::item:
            return item_of(eval(*e.parts[0]), eval(*e.parts[1]), *spent_);
        case expression_kind::slice: {
            std::array<value, 3> bounds{value::none{}, value::none{}, value::none{}};
            for (std::size_t i = 0; i < bounds.size(); ++i)
                if (e.parts[i + 1])
                    bounds[i] = eval(*e.parts[i + 1]);
            return slice_of(eval(*e.parts[0]), bounds, *spent_);
        }
        case expression_kind::call: {
            const value what = eval(*e.parts[0]);
            arguments args = arguments_of(e, "");
            line_ = e.line;
            return call(what, std::move(args));
        }
        case expression_kind::filter:
        case expression_kind::test: {
            const value of = eval(*e.parts[0]);
            const arguments args = arguments_of(e, e.text);
            line_ = e.line;
            return e.kind == expression_kind::filter ? filtered(of, args, *spent_) : value(passes(of, args, *spent_));
        }
        case expression_kind::body:
            return std::exchange(body_, {});
        case expression_kind::spread:
            refuse("* is known in calls only");
        case expression_kind::unary:
            return unary(e);
        case expression_kind::binary:
            return binary(e);
        case expression_kind::comparison:
            return comparison(e);
        case expression_kind::condition:
            if (eval(*e.parts[0]).truth())
                return eval(*e.parts[1]);
            return e.parts[2] ? eval(*e.parts[2]) : value(value::undefined{"the value without else"});
        }
        return {};
    }

    [[nodiscard]] arguments arguments_of(const expression& e, std::string name) {
        arguments made;
        spent_->items(2 * e.arguments.size() + name.size() / 32);
        made.of = std::move(name);
        for (const auto& a : e.arguments)
            if (a->kind == expression_kind::spread)
                spread(*a, made);
            else
                made.values.push_back(eval(*a));
        for (const auto& [key, a] : e.named_arguments) {
            spent_->text(64 + key.size());
            made.named.emplace_back(key, eval(*a));
        }
        return made;
    }

    /// Adds the items of a list after *, or the entries of a mapping after **, to arguments.
    void spread(const expression& e, arguments& into) {
        const value several = eval(*e.parts[0]);
        if (e.text == "*") {
            const value items = items_of(several, *spent_);
            spent_->items(2 * items.as_list()->size());
            into.values.insert(into.values.end(), items.as_list()->begin(), items.as_list()->end());
            return;
        }
        if (!several.as_mapping())
            mistake({"** needs a mapping, not ", several.type_name()});
        for (const auto& [name, v] : several.as_mapping()->entries) {
            if (name.bytes.starts_with(key_mark))
                mistake("** needs a mapping whose keys are text");
            spent_->text(64 + name.bytes.size());
            into.named.emplace_back(name.bytes, v);
        }
    }

    [[nodiscard]] value unary(const expression& e) {
        const value v = eval(*e.parts[0]);
        return e.text == "not" ? value(!v.truth()) : with_sign(e.text, v);
    }

    [[nodiscard]] value binary(const expression& e) {
        value left = eval(*e.parts[0]);
        if (e.text == "and" || e.text == "or")
            return left.truth() == (e.text == "or") ? left : eval(*e.parts[1]);
        const value right = eval(*e.parts[1]);
        return combined(e.text, left, right, *spent_);
    }

    [[nodiscard]] value comparison(const expression& e) {
        value left = eval(*e.parts[0]);
        for (std::size_t i = 0; i < e.operators.size(); ++i) {
            value right = eval(*e.parts[i + 1]);
            if (!holds(e.operators[i], left, right, *spent_))
                return false;
            left = std::move(right);
        }
        return true;
    }

    [[nodiscard]] value call(const value& what, arguments args) {
        if (const auto* m = std::get_if<value::macro_pointer>(&what.held()))
            return call_macro(**m, args);
        const auto* f = std::get_if<value::function_pointer>(&what.held());
        if (const auto* none = std::get_if<value::undefined>(&what.held()); none && none->name() == "strftime_now")
            mistake("strftime_now() needs a date: chat_options::now");
        if (!f)
            mistake({operand(what), " is not a function"});
        args.of = (*f)->name;
        if (args.of == "loop.cycle" || args.of == "loop.changed")
            return call_loop_function(*(*f)->self, args, *spent_);
        return (*f)->self ? call_method(*(*f)->self, args, *spent_) : call_function(args);
    }

    [[nodiscard]] value call_function(const arguments& args) {
        if (args.of == "raise_exception")
            throw failure{{error_code::mismatched, "messages",
                           "the chat template says: " + text_of(args.at(0, "message"), *spent_).bytes}};
        if (args.of == "strftime_now")
            return date_text(args, *now_, *spent_);
        return args.of == "range" ? range(args, *spent_) : dict(args, *spent_);
    }

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
            if (ranges::find(parameters, name, [](const auto& p) -> const std::string& { return p.first; }) !=
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

    budget* spent_;
    std::shared_ptr<scope> scope_;
    value body_;           // the text of a block, for its filters
    std::size_t line_ = 1; // of the last step
    std::optional<std::tm> now_;
    std::size_t depth_ = 0;
    tagged_text out_;
};
using interpreter = basic_interpreter<>;

}}} // namespace kvcache::text::jinja
