// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/failure.hpp>
#include <kvcache/text/tagged_text.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

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

}}} // namespace kvcache::text::jinja
