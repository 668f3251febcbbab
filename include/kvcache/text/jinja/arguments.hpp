// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/value.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

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

}}} // namespace kvcache::text::jinja
