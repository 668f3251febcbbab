// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/number_text.hpp>
#include <kvcache/text/jinja/value.hpp>

#include <bit>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Keys of mappings that are not text: integers, floating-point numbers, booleans and none. In a mapping they are the
// byte 0xff, which no text has, the letter of a type, and a number.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// The first byte of a key that is not text.
inline constexpr char key_mark = '\xff';

/// Returns the key in a mapping that a value stands for, or nullopt if it is not text and not a scalar.
KVCACHE_LAZY [[nodiscard]] inline std::optional<tagged_text> key_of(const value& v, budget& spent) {
    spent.text(v.as_text() ? v.as_text()->bytes.size() : 32);
    if (const auto* t = v.as_text())
        return *t;
    const auto made = [](char type, std::int64_t n) {
        return tagged_text{std::string{key_mark, type} + std::to_string(n), {}};
    };
    if (v.is_none())
        return made('n', 0);
    if (const auto* b = std::get_if<bool>(&v.held()))
        return made('b', *b ? 1 : 0);
    if (const auto n = v.as_integer())
        return made('i', *n);
    if (const auto d = v.as_number()) // 1.0 is the key 1
        return *d >= -1e15 && *d <= 1e15 && *d == static_cast<double>(static_cast<std::int64_t>(*d))
                   ? made('i', static_cast<std::int64_t>(*d))
                   : made('f', std::bit_cast<std::int64_t>(*d));
    return std::nullopt;
}

/// Returns the value that a key in a mapping stands for.
KVCACHE_LAZY [[nodiscard]] inline value key_value(const tagged_text& key, budget& spent) {
    spent.items(2); // the object and, while a list of keys grows, its places
    spent.text(key.bytes.size());
    if (!key.bytes.starts_with(key_mark))
        return key;
    std::int64_t n = 0;
    std::from_chars(key.bytes.data() + 2, key.bytes.data() + key.bytes.size(), n);
    switch (key.bytes[1]) {
    case 'n':
        return value::none{};
    case 'b':
        return n != 0;
    case 'f':
        return std::bit_cast<double>(n);
    default:
        return n;
    }
}

}}} // namespace kvcache::text::jinja
