// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/text/jinja/formatting.hpp>
#include <kvcache/text/jinja/sequence.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

// Python's operators that templates use. All throw a failure if they have no value.

/// Returns the description of an operand in errors.
KVCACHE_LAZY [[nodiscard]] inline std::string operand(const value& v) {
    const auto* name = std::get_if<value::undefined>(&v.held());
    return name ? kvcache::detail::joined({"\"", name->name(), "\", which is undefined,"}) : v.type_name();
}

/// left sign right, for integers and any sign but /.
KVCACHE_LAZY [[nodiscard]] inline value whole_numbers(const std::string& sign, std::int64_t x, std::int64_t y) {
    std::int64_t made = 0;
    if (sign == "//" || sign == "%") {
        if (y == 0)
            mistake("a number is divided by zero");
        if (y == -1)
            return sign == "%" ? std::int64_t{0} : whole_numbers("-", 0, x);
        const std::int64_t down = x / y - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
        return sign == "//" ? down : x - down * y;
    }
    const bool over = sign == "+"   ? add_overflows(x, y, made)
                      : sign == "-" ? subtract_overflows(x, y, made)
                                    : multiply_overflows(x, y, made);
    if (over)
        mistake("a number is too large");
    return made;
}

/// left ** right, for numbers.
KVCACHE_LAZY [[nodiscard]] inline value power(double a, double b, std::optional<std::int64_t> x,
                                              std::optional<std::int64_t> y) {
    if (a == 0 && b < 0)
        mistake("zero has no negative power");
    if (!x || !y || *y < 0) {
        const double made = std::pow(a, b);
        if (std::isnan(made) && !std::isnan(a) && !std::isnan(b))
            mistake("a power is not a real number");
        return made;
    }
    std::int64_t made = 1;
    for (std::int64_t i = 0; i < *y && made != 0; ++i) {
        if (*x == 1 || *x == -1)
            return *x == 1 || *y % 2 == 0 ? std::int64_t{1} : std::int64_t{-1};
        if (multiply_overflows(made, *x, made))
            mistake("a number is too large");
    }
    return made;
}

/// left sign right, for numbers.
KVCACHE_LAZY [[nodiscard]] inline value numbers(const std::string& sign, const value& left, const value& right) {
    const auto x = left.as_integer();
    const auto y = right.as_integer();
    if (x && y && sign != "/" && sign != "**")
        return whole_numbers(sign, *x, *y);
    const double a = *left.as_number();
    const double b = *right.as_number();
    if (sign == "**")
        return power(a, b, x, y);
    if (b == 0 && (sign == "/" || sign == "//" || sign == "%"))
        mistake("a number is divided by zero");
    if (sign == "%") {
        const double rest = std::fmod(a, b);
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : std::copysign(rest, rest == 0 ? b : rest);
    }
    return sign == "+" ? a + b : sign == "-" ? a - b : sign == "*" ? a * b : sign == "/" ? a / b : std::floor(a / b);
}

/// A text or a list, so many times. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value repeated(const value& v, std::int64_t times, budget& spent) {
    const auto* items = v.as_list();
    const std::size_t size = items ? items->size() : v.as_text()->bytes.size();
    const std::size_t count = times < 0 || size == 0 ? 0 : static_cast<std::size_t>(times);
    if (count > (std::size_t{1} << 26))
        refuse("it repeats something more than 67108864 times");
    if (!items) {
        check_length(size * std::min(count, (std::size_t{1} << 27) / std::max<std::size_t>(size, 1) + 1));
        tagged_text made;
        for (std::size_t i = 0; i < count; ++i)
            append(made, *v.as_text(), spent);
        return text_like(v, std::move(made));
    }
    list made;
    for (std::size_t i = 0; i < count; ++i) {
        spent.items(2 * size);
        made.insert(made.end(), items->begin(), items->end());
    }
    return {std::move(made), v.kind()};
}

/// left sign right, for the signs + - * / // % ** ~.
KVCACHE_LAZY [[nodiscard]] inline value combined(const std::string& sign, const value& left, const value& right,
                                                 budget& spent) {
    if (sign == "~" || (sign == "+" && left.as_text() && right.as_text())) {
        const bool markup = sign == "+" && (left.is_markup() || right.is_markup());
        tagged_text made = markup ? escaped_text(left, spent) : text_of(left, spent);
        append(made, markup ? escaped_text(right, spent) : text_of(right, spent), spent);
        return markup ? value::markup(std::move(made)) : value(std::move(made));
    }
    if (left.as_number() && right.as_number())
        return numbers(sign, left, right);
    if (sign == "%" && left.as_text())
        return percent_formatted(left, right, spent);
    const auto repeats = [](const value& v, const value& times) {
        return (v.as_text() || (v.as_list() && v.kind() < list_kind::view)) && times.as_integer();
    };
    if (sign == "*" && repeats(left, right))
        return repeated(left, *right.as_integer(), spent);
    if (sign == "*" && repeats(right, left))
        return repeated(right, *left.as_integer(), spent);
    if (sign == "+" && left.as_list() && right.as_list() && left.kind() == right.kind() &&
        left.kind() < list_kind::view) {
        spent.items(left.as_list()->size() + right.as_list()->size());
        list made = *left.as_list();
        made.insert(made.end(), right.as_list()->begin(), right.as_list()->end());
        return {std::move(made), left.kind()};
    }
    mistake({operand(left), " ", sign, " ", operand(right), " has no value"});
}

/// sign v, for the signs + and -.
KVCACHE_LAZY [[nodiscard]] inline value with_sign(const std::string& sign, const value& v) {
    if (const auto n = v.as_integer())
        return sign == "-" ? whole_numbers("-", 0, *n) : value(*n);
    if (const auto d = v.as_number())
        return sign == "-" ? -*d : *d;
    mistake({"a value of type ", v.type_name(), " has no sign"});
}

/// Returns left sign right, for the comparisons and `in`.
KVCACHE_LAZY [[nodiscard]] inline bool holds(std::string_view sign, const value& left, const value& right,
                                             budget& spent) {
    return sign == "=="       ? equal(left, right, spent)
           : sign == "!="     ? !equal(left, right, spent)
           : sign == "in"     ? contains(right, left, spent)
           : sign == "not in" ? !contains(right, left, spent)
           : sign == "<"      ? less(left, right, spent)
           : sign == ">"      ? less(right, left, spent)
           : sign == "<="     ? less(left, right, spent) || equal(left, right, spent)
                              : less(right, left, spent) || equal(left, right, spent);
}

// Jinja's tests: `v is name(arguments)`.

namespace detail {

/// eq, ne, lt, le, gt, ge and their other names, in, sameas.
KVCACHE_LAZY [[nodiscard]] inline bool comparison_test(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {});
    const value& other = args.at(0, "other");
    if (args.of == "sameas")
        return v.held() == other.held();
    constexpr std::pair<std::string_view, std::string_view> signs[] = {
        {"eq", "=="}, {"equalto", "=="}, {"ne", "!="},         {"lt", "<"},  {"lessthan", "<"},
        {"le", "<="}, {"gt", ">"},       {"greaterthan", ">"}, {"ge", ">="},
    };
    const auto* named = ranges::find(signs, args.of, [](const auto& one) { return one.first; });
    return holds(named == std::end(signs) ? std::string_view(args.of) : named->second, v, other, spent);
}

KVCACHE_LAZY [[nodiscard]] inline bool number_test(const value& v, const arguments& args, budget&) {
    const auto n = v.as_number();
    if (!n)
        mistake({"the test ", args.of, " needs a number, not ", v.type_name()});
    if (args.of != "divisibleby") {
        args.expect(0, {});
        return std::fmod(*n, 2) == 0 ? args.of == "even" : args.of == "odd" && std::abs(std::fmod(*n, 2)) == 1;
    }
    args.expect(1, {"num"});
    const auto by = args.at(0, "num").as_number();
    if (!by || *by == 0)
        mistake("a number is divided by zero, or by none");
    const auto x = v.as_integer();
    const auto y = args.at(0, "num").as_integer();
    return x && y ? *y == -1 || *x % *y == 0 : std::fmod(*n, *by) == 0;
}

KVCACHE_LAZY [[nodiscard]] inline bool type_test(const value& v, const arguments& args, budget&) {
    args.expect(0, {});
    const std::string& name = args.of;
    if (name == "defined" || name == "undefined")
        return v.is_undefined() == (name == "undefined");
    if (name == "none")
        return v.is_none();
    if (name == "string")
        return v.as_text() != nullptr;
    if (name == "mapping")
        return v.as_mapping() && !v.as_mapping()->is_namespace;
    if (name == "sequence")
        return v.as_text() || (v.as_list() && v.kind() < list_kind::view) || v.as_mapping() || v.is_undefined();
    if (name == "iterable")
        return v.as_text() || v.as_list() || v.as_mapping() || v.is_undefined();
    if (name == "number")
        return v.as_number().has_value();
    if (name == "integer")
        return v.is<std::int64_t>();
    if (name == "float")
        return v.is<double>();
    if (name == "boolean")
        return v.is<bool>();
    if (name == "escaped")
        return v.is_markup();
    if (name == "callable") // undefined values are: a call of one is an error
        return v.is<value::macro_pointer>() || v.is<value::function_pointer>() || v.is_undefined();
    return v.is<bool>() && v.truth() == (name == "true");
}

KVCACHE_LAZY [[nodiscard]] inline bool case_test(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    const tagged_text t = text_of(v, spent);
    spent.work(16 * t.bytes.size());
    return is_of_class(t.bytes, args.of == "lower" ? "islower" : "isupper");
}

} // namespace detail

/// Returns the test of this name, or null.
KVCACHE_LAZY [[nodiscard]] inline auto find_test(std::string_view name) {
    using namespace detail;
    static constexpr named_function<bool> tests[] = {
        {"== eq equalto != ne < lt lessthan <= le > gt greaterthan >= ge in sameas", comparison_test<>},
        {"divisibleby odd even", number_test<>},
        {"defined undefined none string mapping sequence iterable", type_test<>},
        {"number integer float boolean true false escaped callable", type_test<>},
        {"lower upper", case_test<>},
    };
    return find_named(tests, name);
}

/// `v is name(args)`, for the name in the arguments. Throws: failure if the test is unknown.
KVCACHE_LAZY [[nodiscard]] inline bool passes(const value& v, const arguments& args, budget& spent) {
    const auto test = find_test(args.of);
    if (!test)
        refuse({"the test \"", args.of, "\" is not known"});
    spent.work(32);
    return test(v, args, spent);
}

}}} // namespace kvcache::text::jinja
