// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/text_functions.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

// Jinja's tests: `v is name(arguments)`.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// A test of values.
struct value_test {
    std::string_view name;
    bool (*passes)(const value& v, const arguments& args, budget& spent);
};

namespace detail {

/// eq, ne, lt, le, gt, ge and their other names, in, sameas.
KVCACHE_LAZY [[nodiscard]] inline bool comparison_test(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {});
    const value& other = args.at(0, "other");
    const std::string& name = args.of;
    if (name == "in")
        return contains(other, v, spent);
    if (name == "sameas")
        return v.held() == other.held();
    if (name == "lt" || name == "<" || name == "lessthan")
        return less(v, other, spent);
    if (name == "gt" || name == ">" || name == "greaterthan")
        return less(other, v, spent);
    if (name == "le" || name == "<=")
        return less(v, other, spent) || equal(v, other, spent);
    if (name == "ge" || name == ">=")
        return less(other, v, spent) || equal(v, other, spent);
    return equal(v, other, spent) == (name != "ne" && name != "!=");
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
KVCACHE_LAZY [[nodiscard]] inline const value_test* find_test(std::string_view name) {
    using namespace detail;
    static constexpr std::array tests{
        value_test{"==", comparison_test<>},
        value_test{"eq", comparison_test<>},
        value_test{"equalto", comparison_test<>},
        value_test{"!=", comparison_test<>},
        value_test{"ne", comparison_test<>},
        value_test{"<", comparison_test<>},
        value_test{"lt", comparison_test<>},
        value_test{"lessthan", comparison_test<>},
        value_test{"<=", comparison_test<>},
        value_test{"le", comparison_test<>},
        value_test{">", comparison_test<>},
        value_test{"gt", comparison_test<>},
        value_test{"greaterthan", comparison_test<>},
        value_test{">=", comparison_test<>},
        value_test{"ge", comparison_test<>},
        value_test{"in", comparison_test<>},
        value_test{"sameas", comparison_test<>},
        value_test{"divisibleby", number_test<>},
        value_test{"odd", number_test<>},
        value_test{"even", number_test<>},
        value_test{"defined", type_test<>},
        value_test{"undefined", type_test<>},
        value_test{"none", type_test<>},
        value_test{"string", type_test<>},
        value_test{"mapping", type_test<>},
        value_test{"sequence", type_test<>},
        value_test{"iterable", type_test<>},
        value_test{"number", type_test<>},
        value_test{"integer", type_test<>},
        value_test{"float", type_test<>},
        value_test{"boolean", type_test<>},
        value_test{"true", type_test<>},
        value_test{"false", type_test<>},
        value_test{"escaped", type_test<>},
        value_test{"callable", type_test<>},
        value_test{"lower", case_test<>},
        value_test{"upper", case_test<>},
    };
    const auto found = std::find_if(tests.begin(), tests.end(), [&](const auto& t) { return t.name == name; });
    return found == tests.end() ? nullptr : &*found;
}

/// `v is name(args)`, for the name in the arguments. Throws: failure if the test is unknown.
KVCACHE_LAZY [[nodiscard]] inline bool passes(const value& v, const arguments& args, budget& spent) {
    const value_test* test = find_test(args.of);
    if (!test)
        refuse({"the test \"", args.of, "\" is not known"});
    spent.work(32);
    return test->passes(v, args, spent);
}

}}} // namespace kvcache::text::jinja
