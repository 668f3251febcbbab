// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/stop_token.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Aborts a parse or a rendering; it is caught where the template is opened or rendered.
struct failure {
    error reason = {};
};

/// Returns the failure with the line of the template in its message, unless it has one or a line does not matter.
KVCACHE_LAZY [[nodiscard]] inline failure at_line(failure f, std::size_t line) {
    const bool known = f.reason.message.starts_with("line ") || f.reason.code == error_code::cancelled;
    if (f.reason.field == "chat_template" && !known)
        f.reason.message = kvcache::detail::joined({"line ", std::to_string(line), ": ", f.reason.message});
    return f;
}

/// Throws `failure` with error_code::unsupported; the message is the joined words.
KVCACHE_LAZY [[noreturn]] inline void refuse(std::initializer_list<std::string_view> words) {
    throw failure{{error_code::unsupported, "chat_template", kvcache::detail::joined(words)}};
}
/// Throws `failure` with error_code::unsupported.
KVCACHE_LAZY [[noreturn]] inline void refuse(std::string_view words) {
    refuse({words});
}
/// Throws `failure` with error_code::cancelled.
KVCACHE_LAZY [[noreturn]] inline void give_up() {
    throw failure{{error_code::cancelled, "chat_template", "the caller cancelled the rendering"}};
}
/// Throws `failure` with error_code::mismatched; the message is the joined words.
KVCACHE_LAZY [[noreturn]] inline void mistake(std::initializer_list<std::string_view> words) {
    throw failure{{error_code::mismatched, "chat_template", kvcache::detail::joined(words)}};
}
/// Throws `failure` with error_code::mismatched.
KVCACHE_LAZY [[noreturn]] inline void mistake(std::string_view words) {
    mistake({words});
}

/// The work and the memory that one rendering may use. Every operation pays before it starts, in proportion to what it
/// reads and makes, so a hostile template ends in an error after bounded time and memory. A unit of work takes at most
/// about a nanosecond. Memory counts when it is allocated, and is not given back when it is freed.
template <class...>
class basic_budget {
public:
    /// A budget for a rendering of messages of this size: the bytes of their texts, and `per_value` for each value.
    /// Once `stop` is requested, the rendering is given up within a millisecond of work.
    explicit basic_budget(std::size_t input, stop_token stop = {})
        : stop_(std::move(stop)),
          work_(within(base_work, work_per_byte, input)),
          bytes_(within(base_bytes, bytes_per_byte, input)),
          next_look_(work_),
          most_work_(work_),
          most_bytes_(bytes_) {}

    // The templates of real models use at most a third of the memory and a sixth of the work, for 20,000 messages of 20
    // bytes and for 10 messages of a million bytes.
    static constexpr std::size_t base_work = 500'000'000;
    static constexpr std::size_t work_per_byte = 64;
    static constexpr std::size_t base_bytes = std::size_t{128} << 20;
    static constexpr std::size_t bytes_per_byte = 32;
    /// The size of a value in addition to the bytes of its text.
    static constexpr std::size_t per_value = 64;

    /// Pays for work. Throws: failure, also when the rendering is stopped.
    void work(std::size_t units) {
        if (units > work_)
            refuse({"it takes more than ", std::to_string(most_work_), " units of work"});
        work_ -= units;
        if (work_ <= next_look_) {
            constexpr std::size_t step = 1'000'000;
            next_look_ = work_ - std::min(work_, step);
            if (stop_.stop_requested())
                give_up();
        }
    }
    /// Pays for memory, and for the work of filling it. Throws: failure.
    void memory(std::size_t bytes) {
        work(bytes);
        if (bytes > bytes_)
            refuse({"it makes more than ", std::to_string(most_bytes_), " bytes of text and lists"});
        bytes_ -= bytes;
    }
    /// Pays for a text with its marks.
    void text(std::size_t bytes) { memory(per_value + 2 * bytes); }
    /// Pays for a list.
    void items(std::size_t count) { memory(per_value + 32 * count); }
    /// Pays for a search for `part` bytes in `whole` bytes, which may compare all of them at every position.
    void search(std::size_t whole, std::size_t part) { work(product(whole, 2 + part / 8)); }

private:
    [[nodiscard]] static std::size_t product(std::size_t a, std::size_t b) noexcept {
        std::size_t made = 0;
        return multiply_overflows(a, b, made) ? std::numeric_limits<std::size_t>::max() : made;
    }
    [[nodiscard]] static std::size_t within(std::size_t base, std::size_t factor, std::size_t input) noexcept {
        std::size_t made = 0;
        return add_overflows(base, product(factor, input), made) ? std::numeric_limits<std::size_t>::max() : made;
    }

    stop_token stop_;
    std::size_t work_;
    std::size_t bytes_;
    std::size_t next_look_; // work that is left when `stop_` is looked at again
    std::size_t most_work_;
    std::size_t most_bytes_;
};
using budget = basic_budget<>;

class value;
struct macro;
/// A list of values.
using list = std::vector<value>;

/// The type that Python has for a list of values. A group is a pair of Jinja's `groupby`. A view is what `dict.items()`
/// returns. A generator is what `select` and `map` return: it is true, and has neither a length nor items by number.
enum class list_kind { ordinary, tuple, group, view, generator };

/// Limits on nested values: their depth, so that a recursive walk cannot exhaust the stack, and whether they contain
/// a namespace, so that none can contain itself.
struct nesting {
    std::size_t depth = 1;
    bool has_namespace = false;

    /// Accounts for a contained value. Throws: failure.
    KVCACHE_LAZY void add(const value& inner);
};

struct shared_list;
struct mapping;

/// A method of a value, or a function of the environment, before its call.
struct bound_function {
    std::string name = {};
    std::shared_ptr<const value> self = {};
};

/// The value of an undefined name. Copies share the name.
struct undefined_value {
    undefined_value() = default;
    KVCACHE_LAZY explicit undefined_value(std::string_view of) : name_(std::make_shared<const std::string>(of)) {}

    [[nodiscard]] std::string_view name() const noexcept { return name_ ? std::string_view(*name_) : ""; }
    friend bool operator==(const undefined_value&, const undefined_value&) { return true; }

private:
    std::shared_ptr<const std::string> name_;
};

/// Python's None.
struct none_value {
    friend bool operator==(const none_value&, const none_value&) { return true; }
};

/// A value of the template language. Text knows which of its bytes are user text. Copies are cheap; contents are
/// shared.
class value {
public:
    using undefined = undefined_value;
    using none = none_value;
    using text_pointer = std::shared_ptr<const tagged_text>;
    using list_pointer = std::shared_ptr<const shared_list>;
    using mapping_pointer = std::shared_ptr<mapping>;
    using macro_pointer = std::shared_ptr<const macro>;
    using function_pointer = std::shared_ptr<const bound_function>;
    using held_type = std::variant<undefined, none, bool, std::int64_t, double, text_pointer, list_pointer,
                                   mapping_pointer, macro_pointer, function_pointer>;

    value() = default;
    value(undefined u) : held_(std::move(u)) {}
    value(none n) : held_(n) {}
    value(bool b) : held_(b) {}
    value(std::int64_t n) : held_(n) {}
    value(double d) : held_(d) {}
    KVCACHE_LAZY value(tagged_text t) : held_(std::make_shared<const tagged_text>(std::move(t))) {}
    KVCACHE_LAZY value(std::string_view t) : value(tagged_text{std::string(t), {}}) {}
    KVCACHE_LAZY value(const char* t) : value(std::string_view(t)) {}
    KVCACHE_LAZY value(list items);
    KVCACHE_LAZY value(list items, list_kind kind);
    KVCACHE_LAZY value(mapping entries);
    value(macro_pointer m) : held_(std::move(m)) {}
    KVCACHE_LAZY value(bound_function f) : held_(std::make_shared<const bound_function>(std::move(f))) {}

    /// Returns text that is markup: added to other text, it escapes that.
    KVCACHE_LAZY [[nodiscard]] static value markup(tagged_text t) {
        value made(std::move(t));
        made.markup_ = true;
        return made;
    }
    [[nodiscard]] bool is_markup() const noexcept { return markup_; }

    [[nodiscard]] const held_type& held() const noexcept { return held_; }
    template <class T>
    [[nodiscard]] bool is() const noexcept {
        return std::holds_alternative<T>(held_);
    }
    [[nodiscard]] bool is_undefined() const noexcept { return is<undefined>(); }
    [[nodiscard]] bool is_none() const noexcept { return is<none>(); }

    [[nodiscard]] const tagged_text* as_text() const noexcept {
        const auto* p = std::get_if<text_pointer>(&held_);
        return p ? p->get() : nullptr;
    }
    KVCACHE_LAZY [[nodiscard]] const list* as_list() const noexcept;
    /// Returns the kind of a list, and list_kind::ordinary of another value.
    KVCACHE_LAZY [[nodiscard]] list_kind kind() const noexcept;
    [[nodiscard]] mapping* as_mapping() const noexcept {
        const auto* p = std::get_if<mapping_pointer>(&held_);
        return p ? p->get() : nullptr;
    }
    KVCACHE_LAZY [[nodiscard]] nesting inside() const noexcept;
    /// Returns the integer value; true and false count, as in Python.
    KVCACHE_LAZY [[nodiscard]] std::optional<std::int64_t> as_integer() const noexcept {
        if (const auto* b = std::get_if<bool>(&held_))
            return *b ? 1 : 0;
        const auto* n = std::get_if<std::int64_t>(&held_);
        return n ? std::optional(*n) : std::nullopt;
    }
    KVCACHE_LAZY [[nodiscard]] std::optional<double> as_number() const noexcept {
        if (const auto n = as_integer())
            return static_cast<double>(*n);
        const auto* d = std::get_if<double>(&held_);
        return d ? std::optional(*d) : std::nullopt;
    }

    KVCACHE_LAZY [[nodiscard]] bool truth() const;

    /// Returns Python's name of the type.
    KVCACHE_LAZY [[nodiscard]] std::string type_name() const {
        constexpr std::array<const char*, 10> names{"undefined", "NoneType", "bool", "int",   "float",
                                                    "str",       "list",     "dict", "macro", "function"};
        constexpr std::array<const char*, 5> lists{"list", "tuple", "tuple", "view", "generator"};
        return as_list() ? lists[static_cast<std::size_t>(kind())] : names[held_.index()];
    }

private:
    held_type held_;
    bool markup_ = false;
};

/// The list inside a value.
struct shared_list {
    KVCACHE_LAZY shared_list(list made, list_kind of);
    list items = {};
    list_kind kind = list_kind::ordinary;
    nesting inside = {};
};

/// A mapping that keeps insertion order. A namespace is a mapping that a template may write to.
struct mapping {
    std::vector<std::pair<tagged_text, value>> entries = {};
    bool is_namespace = false;
    nesting inside = {};

    KVCACHE_LAZY [[nodiscard]] const value* find(std::string_view key, budget& spent) const;
    KVCACHE_LAZY void set(tagged_text key, value v, budget& spent);
    /// Like set, for an absent key.
    KVCACHE_LAZY void add(tagged_text key, value v);
};

KVCACHE_LAZY inline value::value(list items) : value(std::move(items), list_kind::ordinary) {}
KVCACHE_LAZY inline value::value(list items, list_kind kind)
    : held_(std::make_shared<const shared_list>(std::move(items), kind)) {}
KVCACHE_LAZY inline value::value(mapping entries) : held_(std::make_shared<mapping>(std::move(entries))) {}
KVCACHE_LAZY inline const list* value::as_list() const noexcept {
    const auto* p = std::get_if<list_pointer>(&held_);
    return p ? &(*p)->items : nullptr;
}
KVCACHE_LAZY inline list_kind value::kind() const noexcept {
    const auto* p = std::get_if<list_pointer>(&held_);
    return p ? (*p)->kind : list_kind::ordinary;
}
KVCACHE_LAZY inline nesting value::inside() const noexcept {
    if (const auto* p = std::get_if<list_pointer>(&held_))
        return (*p)->inside;
    if (const auto* m = as_mapping())
        return {m->inside.depth, m->inside.has_namespace || m->is_namespace};
    return {0, false};
}
KVCACHE_LAZY inline bool value::truth() const {
    if (is_undefined() || is_none())
        return false;
    if (const auto n = as_number())
        return *n != 0;
    if (const auto* t = as_text())
        return !t->bytes.empty();
    if (const auto* l = as_list())
        return !l->empty() || kind() == list_kind::generator;
    if (const auto* m = as_mapping())
        return !m->entries.empty() || m->is_namespace;
    return true;
}

KVCACHE_LAZY inline void nesting::add(const value& inner) {
    constexpr std::size_t deepest = 400;
    const nesting other = inner.inside();
    depth = std::max(depth, other.depth + 1);
    has_namespace = has_namespace || other.has_namespace;
    if (depth > deepest)
        refuse({"values are nested more than ", std::to_string(deepest), " levels deep"});
}
KVCACHE_LAZY inline shared_list::shared_list(list made, list_kind of) : items(std::move(made)), kind(of) {
    constexpr std::size_t most = 1'000'000;
    if (items.size() > most)
        refuse({"a list has more than ", std::to_string(most), " items"});
    for (const value& item : items)
        inside.add(item);
}
KVCACHE_LAZY inline const value* mapping::find(std::string_view key, budget& spent) const {
    spent.search(entries.size(), key.size());
    for (const auto& [name, v] : entries)
        if (name.bytes == key)
            return &v;
    return nullptr;
}
KVCACHE_LAZY inline void mapping::set(tagged_text key, value v, budget& spent) {
    spent.search(entries.size(), key.bytes.size());
    spent.text(key.bytes.size());
    for (auto& [name, old] : entries)
        if (name.bytes == key.bytes) {
            inside.add(v);
            old = std::move(v);
            return;
        }
    add(std::move(key), std::move(v));
}
KVCACHE_LAZY inline void mapping::add(tagged_text key, value v) {
    inside.add(v);
    entries.emplace_back(std::move(key), std::move(v));
}

/// Returns whether two values are equal as Python compares them. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline bool equal(const value& a, const value& b, budget& spent) {
    spent.work(8);
    if (const auto x = a.as_number())
        return b.as_number() == x;
    if (a.held().index() != b.held().index())
        return false;
    if (const auto* x = a.as_text()) {
        const auto* y = b.as_text();
        if (x->bytes.size() != y->bytes.size())
            return false;
        spent.work(x->bytes.size() / 8);
        return x->bytes == y->bytes;
    }
    if (const auto* x = a.as_list()) {
        const auto* y = b.as_list();
        if (x->size() != y->size() || a.kind() != b.kind())
            return false;
        for (std::size_t i = 0; i < x->size(); ++i)
            if (!equal((*x)[i], (*y)[i], spent))
                return false;
        return true;
    }
    if (const auto* x = a.as_mapping()) {
        const auto* y = b.as_mapping();
        if (x->entries.size() != y->entries.size())
            return false;
        for (const auto& [name, v] : x->entries)
            if (const value* other = y->find(name.bytes, spent); !other || !equal(v, *other, spent))
                return false;
        return true;
    }
    return a.held() == b.held();
}

/// The arguments of a function, filter or test.
struct arguments {
    std::string of = {}; ///< Name of the callee, for errors.
    list values = {};
    std::vector<std::pair<std::string, value>> named = {};

    /// Returns the argument at `position` or of this name, or null.
    KVCACHE_LAZY [[nodiscard]] const value* find(std::size_t position, std::string_view name) const {
        if (position < values.size())
            return &values[position];
        for (const auto& [key, v] : named)
            if (key == name)
                return &v;
        return nullptr;
    }
    /// Returns an argument, or `otherwise` without it.
    KVCACHE_LAZY [[nodiscard]] value value_or(std::size_t position, std::string_view name,
                                              const value& otherwise) const {
        const value* v = find(position, name);
        return v ? *v : otherwise;
    }
    /// Returns whether an argument is given and true.
    KVCACHE_LAZY [[nodiscard]] bool is_true(std::size_t position, std::string_view name) const {
        const value* v = find(position, name);
        return v && v->truth();
    }
    KVCACHE_LAZY [[nodiscard]] const value& at(std::size_t position, std::string_view name) const {
        const value* v = find(position, name);
        if (!v)
            mistake({of, "() lacks its argument ", name});
        return *v;
    }
    KVCACHE_LAZY [[nodiscard]] const tagged_text& text(std::size_t position, std::string_view name) const {
        const auto* t = at(position, name).as_text();
        if (!t)
            mistake({of, "() needs a string as ", name, ", not ", at(position, name).type_name()});
        return *t;
    }
    KVCACHE_LAZY [[nodiscard]] std::optional<std::string> text_or_none(std::size_t position, std::string_view name,
                                                                       budget& spent) const {
        const value* v = find(position, name);
        if (!v || v->is_none())
            return std::nullopt;
        spent.text(text(position, name).bytes.size());
        return text(position, name).bytes;
    }
    KVCACHE_LAZY [[nodiscard]] std::int64_t integer(std::size_t position, std::string_view name,
                                                    std::int64_t otherwise) const {
        const value* v = find(position, name);
        if (!v || v->is_none())
            return otherwise;
        const auto n = v->as_integer();
        if (!n)
            mistake({of, "() needs a number as ", name, ", not ", v->type_name()});
        return *n;
    }
    /// Rejects arguments that the callee does not know, so that none is ignored.
    KVCACHE_LAZY void expect(std::size_t most, std::initializer_list<std::string_view> names) const {
        if (values.size() > most)
            refuse({of, "() takes at most ", std::to_string(most), " arguments"});
        for (const auto& [key, v] : named) {
            bool known = false;
            for (const auto name : names)
                known = known || key == name;
            if (!known)
                refuse({of, "() has no argument ", key, " that is known"});
        }
    }
};

/// Returns the integer that the whole of a text is, or nullopt.
KVCACHE_LAZY [[nodiscard]] inline std::optional<std::int64_t> parsed_integer(std::string_view text, int base = 10) {
    std::int64_t n = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n, base);
    return problem == std::errc{} && end == text.data() + text.size() ? std::optional(n) : std::nullopt;
}

/// A filter, method or test under its names, which are separated by spaces.
template <class Answer>
struct named_function {
    std::string_view names;
    Answer (*call)(const value& v, const arguments& args, budget& spent);
};

/// Returns the function of this name in a table, or null.
template <class Answer, std::size_t N>
[[nodiscard]] auto find_named(const named_function<Answer> (&table)[N], std::string_view name) {
    for (const auto& [names, call] : table)
        for (std::size_t begin = 0, end = 0; end < names.size(); begin = end + 1) {
            end = std::min(names.find(' ', begin), names.size());
            if (names.substr(begin, end - begin) == name)
                return call;
        }
    return decltype(table[0].call){nullptr};
}

}}} // namespace kvcache::text::jinja
