// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/syntax.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Returns the value of `loop` for item `i`. `last` is what `loop.changed` was last called with. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value loop_state(const list& items, std::size_t i, const value& last, budget& spent) {
    spent.memory(4096); // 13 entries, and their places while the mapping grows
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
    add("depth", std::int64_t{1}); // of recursion, which this interpreter lacks
    add("depth0", std::int64_t{0});
    add("cycle", bound_function{"loop.cycle", std::make_shared<const value>(at)});
    add("changed", bound_function{"loop.changed", std::make_shared<const value>(last)});
    add("previtem", i == 0 ? value(value::undefined{"previtem"}) : items[i - 1]);
    add("nextitem", at + 1 == n ? value(value::undefined{"nextitem"}) : items[i + 1]);
    return made;
}

/// loop.cycle(...): the next of its arguments for each item; loop.changed(...): whether it is called with other
/// arguments than before. `self` is the index of the item, or the memory of the loop. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value call_loop_function(const value& self, const arguments& args, budget& spent) {
    args.expect(args.values.size(), {});
    if (args.of == "loop.cycle") {
        if (args.values.empty())
            mistake("loop.cycle() needs arguments");
        return args.values[static_cast<std::size_t>(*self.as_integer()) % args.values.size()];
    }
    spent.items(args.values.size());
    // Kept as text: the values may contain the loop, which contains this memory.
    value now = repr_of(value(args.values, list_kind::tuple), spent);
    mapping& memory = *self.as_mapping();
    const value* before = memory.find("last", spent);
    if (before && equal(*before, now, spent))
        return false;
    memory.set({"last", {}}, std::move(now), spent);
    return true;
}

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

/// dict(...) or namespace(...): the entries of a first mapping or list of pairs, and the named arguments.
KVCACHE_LAZY [[nodiscard]] inline value dict(const arguments& args, budget& spent) {
    mapping made;
    made.is_namespace = args.of == "namespace";
    const value none = mapping{};
    const value& from = args.values.empty() ? none : args.values[0];
    if (const auto* map = from.as_mapping()) {
        for (const auto& [name, v] : map->entries) {
            spent.items(8);
            made.add(part_of(name, 0, name.bytes.size(), spent), v);
        }
    } else {
        const value pairs = items_of(from, spent);
        for (const value& pair : *pairs.as_list()) {
            const value held = items_of(pair, spent);
            const auto key = held.as_list()->size() == 2 ? key_of((*held.as_list())[0], spent) : std::nullopt;
            if (!key)
                mistake("dict() needs pairs");
            spent.items(8);
            made.set(*key, (*held.as_list())[1], spent);
        }
    }
    for (const auto& [name, v] : args.named)
        made.set({name, {}}, v, spent);
    return made;
}

/// strftime_now(format). Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value date_text(const arguments& args, const std::tm& now, budget& spent) {
    std::array<char, 256> buffer{};
    const std::string& format = args.text(0, "format").bytes;
    spent.work(8 * format.size());
    const auto size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &now);
    return std::string_view(buffer.data(), size);
}

/// range(stop) or range(start, stop, step). Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value range(const arguments& args, budget& spent) {
    args.expect(3, {});
    const bool one = args.values.size() == 1;
    const std::int64_t begin = one ? 0 : args.integer(0, "start", 0);
    const std::int64_t end = one ? args.integer(0, "stop", 0) : args.integer(1, "stop", 0);
    const std::int64_t by = args.integer(2, "step", 1);
    constexpr std::int64_t most = 100'000; // the limit of Jinja's sandbox
    constexpr std::int64_t far = std::int64_t{1} << 40;
    if (by == 0 || begin > far || begin < -far || end > far || end < -far || by > far || by < -far)
        mistake("range() is called with a number out of range");
    list out;
    for (std::int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
        if (static_cast<std::int64_t>(out.size()) == most)
            mistake({"range() has more than ", std::to_string(most), " items"});
        spent.memory(3 * sizeof(value));
        out.emplace_back(i);
    }
    return out;
}

}}} // namespace kvcache::text::jinja
