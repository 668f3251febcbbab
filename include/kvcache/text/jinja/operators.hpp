// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

// Python's operators that templates use. All throw a failure if they have no value.
namespace kvcache::inline KVCACHE_ABI::text::jinja {

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
    const bool over = sign == "+"   ? __builtin_add_overflow(x, y, &made)
                      : sign == "-" ? __builtin_sub_overflow(x, y, &made)
                                    : __builtin_mul_overflow(x, y, &made);
    if (over)
        mistake("a number is too large");
    return made;
}

/// left sign right, for the signs + - * / // % ~.
KVCACHE_LAZY [[nodiscard]] inline value combined(const std::string& sign, const value& left, const value& right,
                                                 budget& spent) {
    if (sign == "~") {
        tagged_text made = text_of(left, spent);
        append(made, text_of(right, spent), spent);
        return made;
    }
    if (sign == "+" && left.as_text() && right.as_text()) {
        tagged_text made = text_of(left, spent);
        append(made, *right.as_text(), spent);
        return made;
    }
    if (sign == "+" && left.as_list() && right.as_list()) {
        spent.items(left.as_list()->size() + right.as_list()->size());
        list made = *left.as_list();
        made.insert(made.end(), right.as_list()->begin(), right.as_list()->end());
        return made;
    }
    const auto x = left.as_integer();
    const auto y = right.as_integer();
    if (x && y && sign != "/")
        return whole_numbers(sign, *x, *y);
    const auto a = left.as_number();
    const auto b = right.as_number();
    if (!a || !b)
        mistake({operand(left), " ", sign, " ", operand(right), " has no value"});
    if (*b == 0 && (sign == "/" || sign == "//" || sign == "%"))
        mistake("a number is divided by zero");
    return sign == "+"    ? *a + *b
           : sign == "-"  ? *a - *b
           : sign == "*"  ? *a * *b
           : sign == "/"  ? *a / *b
           : sign == "//" ? std::floor(*a / *b)
                          : *a - std::floor(*a / *b) * *b;
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
KVCACHE_LAZY [[nodiscard]] inline bool holds(const std::string& sign, const value& left, const value& right,
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

} // namespace kvcache::text::jinja
