// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/filters.hpp>
#include <kvcache/text/jinja/operators.hpp>
#include <kvcache/text/jinja/scope.hpp>
#include <kvcache/text/jinja/syntax.hpp>
#include <kvcache/text/jinja/value_tests.hpp>

#include <array>
#include <cstddef>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Evaluates expressions. `Interpreter` derives from it, and calls macros: its call_macro(macro, arguments) returns
/// what a macro writes.
template <class Interpreter>
class evaluator {
protected:
    /// `now`, if given, is the date of strftime_now.
    evaluator(std::optional<std::tm> now, budget& spent)
        : spent_(&spent), scope_(std::make_shared<scope>()), now_(now) {}

    /// Pays for a step, and counts the depth of the call stack.
    class step {
    public:
        step(evaluator& in, std::size_t line) : in_(&in) {
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
        evaluator* in_;
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
            return static_cast<Interpreter&>(*this).call_macro(**m, args);
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

    budget* spent_;
    std::shared_ptr<scope> scope_;
    value body_;           // the text of a block, for its filters
    std::size_t line_ = 1; // of the last step

private:
    std::optional<std::tm> now_;
    std::size_t depth_ = 0;
};

}}} // namespace kvcache::text::jinja
