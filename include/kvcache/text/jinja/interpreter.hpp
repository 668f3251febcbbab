// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/filters.hpp>
#include <kvcache/text/jinja/syntax.hpp>

#include <array>
#include <cmath>
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

namespace kvcache::text::jinja {

/// Names and their values; what is not here is looked for in the scope around it.
struct scope {
    std::shared_ptr<scope> around = {};
    std::map<std::string, value, std::less<>> names = {};

    [[nodiscard]] const value* find(std::string_view name) const {
        for (const scope* s = this; s; s = s->around.get())
            if (const auto found = s->names.find(name); found != s->names.end())
                return &found->second;
        return nullptr;
    }
};

/// A macro and where it was made. The scope outlives it: a macro is only called while its template is rendered.
struct macro {
    const statement* made_by = nullptr;
    std::weak_ptr<scope> around = {};
};

/// Carries out a template. Steps, depth and output are bounded: a hostile template ends in an error.
class interpreter {
public:
    /// `now`, if given, is what strftime_now writes; without it the function is undefined.
    interpreter(std::map<std::string, value, std::less<>> names, std::optional<std::tm> now)
        : scope_(std::make_shared<scope>()), now_(now) {
        scope_->names = std::move(names);
        for (const char* function : {"raise_exception", "range", "namespace", "dict"})
            scope_->names.emplace(function, bound_function{function, nullptr});
        if (now_)
            scope_->names.emplace("strftime_now", bound_function{"strftime_now", nullptr});
    }

    /// Throws: failure.
    [[nodiscard]] marked_text run(const block& body) {
        run_block(body);
        return std::move(out_);
    }

private:
    enum class flow { on, leave, next };

    /// Counts a step and how deep the machine's stack is.
    class step {
    public:
        explicit step(interpreter& in) : in_(&in) {
            constexpr std::size_t most = 5'000'000;
            constexpr std::size_t deepest = 1500;
            if (++in.steps_ > most)
                refuse("it takes more than " + std::to_string(most) + " steps");
            if (++in.depth_ > deepest)
                refuse("its macros call each other without end");
        }
        step(const step&) = delete;
        step& operator=(const step&) = delete;
        ~step() { --in_->depth_; }

    private:
        interpreter* in_;
    };

    void write(const marked_text& more) { append(out_, more); }

    flow run_block(const block& body) {
        for (const auto& one : body)
            if (const flow f = run_statement(*one); f != flow::on)
                return f;
        return flow::on;
    }

    flow run_statement(const statement& s) {
        const step here(*this);
        switch (s.kind) {
        case statement_kind::data:
            write({s.text, {}});
            return flow::on;
        case statement_kind::print:
            write(text_of(eval(*s.values[0])));
            return flow::on;
        case statement_kind::branch:
            for (std::size_t i = 0; i < s.bodies.size(); ++i)
                if (i >= s.values.size() || eval(*s.values[i]).truth())
                    return run_block(s.bodies[i]);
            return flow::on;
        case statement_kind::loop:
            return run_loop(s);
        case statement_kind::set:
            assign(s.targets, eval(*s.values[0]));
            return flow::on;
        case statement_kind::set_block:
            assign(s.targets, captured(s.bodies[0]));
            return flow::on;
        case statement_kind::macro:
            scope_->names[s.text] = std::make_shared<const macro>(macro{&s, scope_});
            return flow::on;
        case statement_kind::leave:
            return flow::leave;
        case statement_kind::next:
            return flow::next;
        case statement_kind::group:
            return run_block(s.bodies[0]);
        }
        return flow::on;
    }

    [[nodiscard]] value captured(const block& body) {
        marked_text before = std::exchange(out_, {});
        run_block(body);
        return std::exchange(out_, std::move(before));
    }

    void assign(const std::vector<std::string>& targets, value v) {
        if (targets.size() > 1) {
            const list items = items_of(v);
            if (items.size() != targets.size())
                mistake("a value of " + std::to_string(items.size()) + " parts is given to " +
                        std::to_string(targets.size()) + " names");
            for (std::size_t i = 0; i < targets.size(); ++i)
                scope_->names[targets[i]] = items[i];
            return;
        }
        const auto dot = targets[0].find('.');
        if (dot == std::string::npos) {
            scope_->names[targets[0]] = std::move(v);
            return;
        }
        const value* of = scope_->find(std::string_view(targets[0]).substr(0, dot));
        mapping* space = of ? of->as_mapping() : nullptr;
        if (!space || !space->is_namespace)
            mistake("\"" + targets[0].substr(0, dot) + "\" is not a namespace");
        if (v.inside().has_namespace)
            refuse("a namespace that holds a namespace is not known");
        space->set({targets[0].substr(dot + 1), {}}, std::move(v));
    }

    /// A scope for a while.
    class inner_scope {
    public:
        inner_scope(interpreter& in, std::shared_ptr<scope> around)
            : in_(&in), before_(std::exchange(in.scope_, std::make_shared<scope>())) {
            in.scope_->around = around ? std::move(around) : before_;
        }
        inner_scope(const inner_scope&) = delete;
        inner_scope& operator=(const inner_scope&) = delete;
        ~inner_scope() { in_->scope_ = std::move(before_); }

    private:
        interpreter* in_;
        std::shared_ptr<scope> before_;
    };

    flow run_loop(const statement& s) {
        list items = items_of(eval(*s.values[0]));
        if (s.values[1]) {
            list kept;
            for (const value& item : items) {
                const inner_scope one(*this, nullptr);
                assign(s.targets, item);
                if (eval(*s.values[1]).truth())
                    kept.push_back(item);
            }
            items = std::move(kept);
        }
        if (items.empty())
            return s.bodies.size() > 1 ? run_block(s.bodies[1]) : flow::on;
        for (std::size_t i = 0; i < items.size(); ++i) {
            const step here(*this);
            const inner_scope one(*this, nullptr);
            assign(s.targets, items[i]);
            scope_->names["loop"] = loop_state(items, i);
            if (run_block(s.bodies[0]) == flow::leave)
                break;
        }
        return flow::on;
    }

    [[nodiscard]] static value loop_state(const list& items, std::size_t i) {
        const auto n = static_cast<std::int64_t>(items.size());
        const auto at = static_cast<std::int64_t>(i);
        mapping made;
        const auto add = [&](const char* name, value v) { made.add({name, {}}, std::move(v)); };
        add("index", at + 1);
        add("index0", at);
        add("first", i == 0);
        add("last", at + 1 == n);
        add("length", n);
        add("revindex", n - at);
        add("revindex0", n - at - 1);
        add("previtem", i == 0 ? value(value::undefined{"previtem"}) : items[i - 1]);
        add("nextitem", at + 1 == n ? value(value::undefined{"nextitem"}) : items[i + 1]);
        return made;
    }

    [[nodiscard]] value eval(const expression& e) {
        const step here(*this);
        switch (e.kind) {
        case expression_kind::constant:
            return e.constant;
        case expression_kind::name: {
            const value* found = scope_->find(e.text);
            return found ? *found : value(value::undefined{e.text});
        }
        case expression_kind::sequence: {
            list items;
            for (const auto& part : e.parts)
                items.push_back(eval(*part));
            return items;
        }
        case expression_kind::mapping: {
            mapping made;
            for (std::size_t i = 0; i < e.parts.size(); i += 2)
                made.set(text_of(eval(*e.parts[i])), eval(*e.parts[i + 1]));
            return made;
        }
        case expression_kind::attribute:
            return attribute_of(eval(*e.parts[0]), e.text);
        case expression_kind::item:
            return item_of(eval(*e.parts[0]), eval(*e.parts[1]));
        case expression_kind::slice: {
            std::array<value, 3> bounds{value::none{}, value::none{}, value::none{}};
            for (std::size_t i = 0; i < bounds.size(); ++i)
                if (e.parts[i + 1])
                    bounds[i] = eval(*e.parts[i + 1]);
            return slice_of(eval(*e.parts[0]), bounds);
        }
        case expression_kind::call:
            return call(eval(*e.parts[0]), arguments_of(e, ""));
        case expression_kind::filter:
            return filtered(eval(*e.parts[0]), arguments_of(e, e.text));
        case expression_kind::test:
            return passes(eval(*e.parts[0]), arguments_of(e, e.text));
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
        made.of = std::move(name);
        for (const auto& a : e.arguments)
            made.values.push_back(eval(*a));
        for (const auto& [key, a] : e.named_arguments)
            made.named.emplace_back(key, eval(*a));
        return made;
    }

    [[nodiscard]] value unary(const expression& e) {
        const value v = eval(*e.parts[0]);
        if (e.text == "not")
            return !v.truth();
        if (const auto n = v.as_integer())
            return e.text == "-" ? -*n : *n;
        if (const auto d = v.as_number())
            return e.text == "-" ? -*d : *d;
        mistake("a value of type " + v.type_name() + " has no sign");
    }

    [[nodiscard]] value binary(const expression& e) {
        value left = eval(*e.parts[0]);
        if (e.text == "and" || e.text == "or")
            return left.truth() == (e.text == "or") ? left : eval(*e.parts[1]);
        const value right = eval(*e.parts[1]);
        if (e.text == "~") {
            marked_text made = text_of(left);
            append(made, text_of(right));
            return made;
        }
        if (e.text == "+" && left.as_text() && right.as_text()) {
            marked_text made = *left.as_text();
            append(made, *right.as_text());
            return made;
        }
        if (e.text == "+" && left.as_list() && right.as_list()) {
            list made = *left.as_list();
            made.insert(made.end(), right.as_list()->begin(), right.as_list()->end());
            return made;
        }
        const auto x = left.as_integer();
        const auto y = right.as_integer();
        if (x && y && e.text != "/")
            return whole_numbers(e.text, *x, *y);
        const auto a = left.as_number();
        const auto b = right.as_number();
        if (!a || !b)
            mistake("line " + std::to_string(e.line) + ": " + operand(left) + " " + e.text + " " + operand(right) +
                    " has no value");
        if (*b == 0 && (e.text == "/" || e.text == "//" || e.text == "%"))
            mistake("a number is divided by zero");
        return e.text == "+"    ? *a + *b
               : e.text == "-"  ? *a - *b
               : e.text == "*"  ? *a * *b
               : e.text == "/"  ? *a / *b
               : e.text == "//" ? std::floor(*a / *b)
                                : *a - std::floor(*a / *b) * *b;
    }
    [[nodiscard]] static std::string operand(const value& v) {
        const auto* name = std::get_if<value::undefined>(&v.held());
        return name ? "\"" + name->name + "\", which is undefined," : v.type_name();
    }
    [[nodiscard]] static value whole_numbers(const std::string& sign, std::int64_t x, std::int64_t y) {
        std::int64_t made = 0;
        if (sign == "//" || sign == "%") {
            if (y == 0)
                mistake("a number is divided by zero");
            if (y == -1)
                return sign == "%" ? std::int64_t{0} : whole_numbers("-", 0, x);
            const std::int64_t down = x / y - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
            return sign == "//" ? down : x - down * y;
        }
        const bool over = sign == "+"   ? __builtin_add_overflow(x, y, &made)
                          : sign == "-" ? __builtin_sub_overflow(x, y, &made)
                                        : __builtin_mul_overflow(x, y, &made);
        if (over)
            mistake("a number is too large");
        return made;
    }

    [[nodiscard]] value comparison(const expression& e) {
        value left = eval(*e.parts[0]);
        for (std::size_t i = 0; i < e.operators.size(); ++i) {
            value right = eval(*e.parts[i + 1]);
            const std::string& sign = e.operators[i];
            const bool holds = sign == "=="       ? equal(left, right)
                               : sign == "!="     ? !equal(left, right)
                               : sign == "in"     ? contains(right, left)
                               : sign == "not in" ? !contains(right, left)
                               : sign == "<"      ? less(left, right)
                               : sign == ">"      ? less(right, left)
                               : sign == "<="     ? less(left, right) || equal(left, right)
                                                  : less(right, left) || equal(left, right);
            if (!holds)
                return false;
            left = std::move(right);
        }
        return true;
    }

    [[nodiscard]] value call(const value& what, arguments args) {
        if (const auto* m = std::get_if<value::macro_pointer>(&what.held()))
            return call_macro(**m, args);
        const auto* f = std::get_if<value::function_pointer>(&what.held());
        if (!f)
            mistake(operand(what) + " is not a function");
        args.of = (*f)->name;
        return (*f)->self ? call_method(*(*f)->self, args) : call_function(args);
    }

    [[nodiscard]] value call_macro(const macro& m, const arguments& args) {
        const auto around = m.around.lock();
        if (!around)
            refuse("a macro is called outside of the loop that it was made in");
        const inner_scope one(*this, around);
        const auto& parameters = m.made_by->parameters;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            const value* given = args.find(i, parameters[i].first);
            scope_->names[parameters[i].first] = given                  ? *given
                                                 : parameters[i].second ? eval(*parameters[i].second)
                                                                        : value(value::undefined{parameters[i].first});
        }
        if (args.values.size() > parameters.size())
            mistake("the macro " + m.made_by->text + " is called with too many arguments");
        return captured(m.made_by->bodies[0]);
    }

    [[nodiscard]] value call_function(const arguments& args) {
        if (args.of == "raise_exception")
            throw failure{{error_code::mismatched, "messages",
                           "the chat template says: " + text_of(args.at(0, "message")).bytes}};
        if (args.of == "strftime_now") {
            std::array<char, 256> buffer{};
            const std::string format = args.text(0, "format").bytes;
            const auto size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &*now_);
            return std::string_view(buffer.data(), size);
        }
        if (args.of == "range")
            return range(args);
        mapping made;
        made.is_namespace = args.of == "namespace";
        if (const value* from = args.find(0, ""); from && from->as_mapping())
            for (const auto& [name, v] : from->as_mapping()->entries)
                made.add(name, v);
        for (const auto& [name, v] : args.named)
            made.set({name, {}}, v);
        return made;
    }

    [[nodiscard]] static value range(const arguments& args) {
        args.expect(3, {});
        const bool one = args.values.size() == 1;
        const std::int64_t begin = one ? 0 : args.integer(0, "start", 0);
        const std::int64_t end = one ? args.integer(0, "stop", 0) : args.integer(1, "stop", 0);
        const std::int64_t by = args.integer(2, "step", 1);
        constexpr std::int64_t most = 100'000; // what Jinja's sandbox allows
        constexpr std::int64_t far = std::int64_t{1} << 40;
        if (by == 0 || begin > far || begin < -far || end > far || end < -far || by > far || by < -far)
            mistake("range() is called with a number out of range");
        list out;
        for (std::int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
            if (static_cast<std::int64_t>(out.size()) == most)
                mistake("range() has more than " + std::to_string(most) + " items");
            out.emplace_back(i);
        }
        return out;
    }

    std::shared_ptr<scope> scope_;
    std::optional<std::tm> now_;
    marked_text out_;
    std::size_t steps_ = 0;
    std::size_t depth_ = 0;
};

} // namespace kvcache::text::jinja
