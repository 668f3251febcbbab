// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <utf8proc.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// A decoded code point and its length in bytes.
struct code_point {
    char32_t value = 0;
    std::size_t bytes = 1;
};

/// The classification of a position in a byte string that should be UTF-8.
struct utf8_sequence {
    enum class kind { whole, cut_short, invalid };
    kind is = kind::whole;
    std::size_t bytes = 1; ///< Length of the code point, of its beginning, or of the bytes that one U+FFFD replaces.
};

namespace detail {

[[nodiscard]] constexpr std::uint8_t byte_at(std::string_view text, std::size_t i) noexcept {
    return static_cast<std::uint8_t>(text[i]);
}

/// The allowed second bytes after `lead`. They exclude overlong forms, surrogates and values past U+10FFFF.
struct second_byte_range {
    std::uint8_t first = 0x80;
    std::uint8_t last = 0xbf;
};
[[nodiscard]] constexpr second_byte_range second_bytes(std::uint8_t lead) noexcept {
    return lead == 0xe0   ? second_byte_range{0xa0, 0xbf}
           : lead == 0xed ? second_byte_range{0x80, 0x9f}
           : lead == 0xf0 ? second_byte_range{0x90, 0xbf}
           : lead == 0xf4 ? second_byte_range{0x80, 0x8f}
                          : second_byte_range{};
}

} // namespace detail

/// Classifies the bytes at `at` strictly: overlong forms, surrogates and values past U+10FFFF are invalid. An invalid
/// run is the longest that one U+FFFD replaces (Unicode's "maximal subpart"). Requires: at < text.size().
[[nodiscard]] constexpr utf8_sequence utf8_at(std::string_view text, std::size_t at) noexcept {
    using kind = utf8_sequence::kind;
    const std::uint8_t lead = detail::byte_at(text, at);
    if (lead < 0x80)
        return {kind::whole, 1};
    const std::size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                               : lead >= 0xe0 && lead <= 0xef ? 3
                               : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                              : 0;
    if (length == 0)
        return {kind::invalid, 1};
    auto allowed = detail::second_bytes(lead);
    for (std::size_t i = 1; i < length; ++i, allowed = {}) {
        if (at + i == text.size())
            return {kind::cut_short, i};
        const std::uint8_t next = detail::byte_at(text, at + i);
        if (next < allowed.first || next > allowed.last)
            return {kind::invalid, i};
    }
    return {kind::whole, length};
}

/// Returns the offset of the first byte that is not valid UTF-8, if there is one. Cost: O(bytes).
[[nodiscard]] constexpr std::optional<std::size_t> first_invalid_utf8(std::string_view text) noexcept {
    for (std::size_t i = 0; i < text.size();) {
        const auto found = utf8_at(text, i);
        if (found.is != utf8_sequence::kind::whole)
            return i;
        i += found.bytes;
    }
    return std::nullopt;
}

/// Returns the code point at `at`. Requires: text is UTF-8 and a code point begins at `at`.
[[nodiscard]] constexpr code_point code_point_at(std::string_view text, std::size_t at) noexcept {
    const auto tail = [&](std::size_t i) { return static_cast<char32_t>(detail::byte_at(text, at + i) & 0x3f); };
    const std::uint8_t lead = detail::byte_at(text, at);
    if (lead < 0x80)
        return {lead, 1};
    if (lead < 0xe0)
        return {(static_cast<char32_t>(lead & 0x1f) << 6) | tail(1), 2};
    if (lead < 0xf0)
        return {(static_cast<char32_t>(lead & 0x0f) << 12) | (tail(1) << 6) | tail(2), 3};
    return {(static_cast<char32_t>(lead & 0x07) << 18) | (tail(1) << 12) | (tail(2) << 6) | tail(3), 4};
}

/// Calls `use(code point, offset)` for each code point of a text. Requires: text is UTF-8.
template <class Use>
constexpr void each_code_point(std::string_view text, Use use) {
    for (std::size_t at = 0; at < text.size();) {
        const code_point c = code_point_at(text, at);
        use(c, at);
        at += c.bytes;
    }
}

/// Returns whether a text is one code point. Requires: text is UTF-8.
[[nodiscard]] constexpr bool is_one_code_point(std::string_view text) noexcept {
    return !text.empty() && code_point_at(text, 0).bytes == text.size();
}

/// Returns the code point that ends just before `end`. Requires: text is UTF-8, a code point ends at `end`, and end >
/// 0.
[[nodiscard]] constexpr code_point code_point_before(std::string_view text, std::size_t end) noexcept {
    std::size_t at = end - 1;
    while (at > 0 && (detail::byte_at(text, at) & 0xc0) == 0x80)
        --at;
    return code_point_at(text, at);
}

/// Appends a code point as UTF-8. Requires: value is a Unicode scalar value.
constexpr void append_utf8(std::string& out, char32_t value) {
    const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<std::uint8_t>(byte))); };
    if (value < 0x80) {
        put(value);
    } else if (value < 0x800) {
        put(0xc0 | (value >> 6));
        put(0x80 | (value & 0x3f));
    } else if (value < 0x10000) {
        put(0xe0 | (value >> 12));
        put(0x80 | ((value >> 6) & 0x3f));
        put(0x80 | (value & 0x3f));
    } else {
        put(0xf0 | (value >> 18));
        put(0x80 | ((value >> 12) & 0x3f));
        put(0x80 | ((value >> 6) & 0x3f));
        put(0x80 | (value & 0x3f));
    }
}

/// U+FFFD, the replacement for invalid bytes.
inline constexpr std::string_view replacement_character = "\xef\xbf\xbd";

/// Moves the decided part of `bytes` to `out`, with invalid runs as U+FFFD. Bytes that later ones may complete stay
/// in `bytes`.
inline void take_complete_utf8(std::string& bytes, std::string& out) {
    std::size_t i = 0;
    while (i < bytes.size()) {
        const auto found = utf8_at(bytes, i);
        if (found.is == utf8_sequence::kind::cut_short)
            break;
        if (found.is == utf8_sequence::kind::whole)
            out.append(bytes, i, found.bytes);
        else
            out.append(replacement_character);
        i += found.bytes;
    }
    bytes.erase(0, i);
}

/// Returns whether c has Unicode's White_Space property.
[[nodiscard]] constexpr bool is_white_space(char32_t c) noexcept {
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/// Returns whether the general category is Nd, Nl or No.
[[nodiscard]] inline bool is_number(char32_t c) noexcept {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

/// Returns whether the general category is P*, or c is an ASCII punctuation sign or symbol.
[[nodiscard]] inline bool is_punctuation(char32_t c) noexcept {
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

/// Returns whether the general category is M*.
[[nodiscard]] inline bool is_mark(char32_t c) noexcept {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

/// Appends the lower case of `c`, mapped without context.
inline void append_lower_case(std::string& out, char32_t c) {
    if (c == 0x130) { // the only code point whose lower case has two code points
        out.append("i\xcc\x87");
        return;
    }
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

/// The four normal forms of Unicode.
enum class normal_form { nfc, nfd, nfkc, nfkd };

namespace detail {

/// Puts the marks of every run in the canonical order: by combining class, stably. Cost: O(n log n).
inline void order_marks(std::vector<utf8proc_int32_t>& points) {
    const auto class_of = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
    for (auto i = points.begin(); i != points.end();) {
        const auto begin = std::find_if(i, points.end(), [&](utf8proc_int32_t c) { return class_of(c) != 0; });
        i = std::find_if(begin, points.end(), [&](utf8proc_int32_t c) { return class_of(c) == 0; });
        if (i - begin > 1)
            std::stable_sort(begin, i, [&](auto a, auto b) { return class_of(a) < class_of(b); });
    }
}

} // namespace detail

/// Returns `text` in a normal form; of a result that is longer than `longest`, at least so much that it is. Requires:
/// text is UTF-8. Throws: std::bad_alloc. Cost: O(bytes), and O(n log n) for n combining marks in a row.
[[nodiscard]] inline std::string normalized(std::string_view text, normal_form form, std::size_t longest) {
    // Nothing composes below U+0300, and nothing decomposes below U+00A0.
    const unsigned char settled = form == normal_form::nfc ? 0xcc : 0xc2;
    bool unchanged = true;
    for (const char c : text)
        unchanged = unchanged && static_cast<unsigned char>(c) < settled;
    if (unchanged)
        return std::string(text);
    int options = UTF8PROC_STABLE;
    options |= form == normal_form::nfc || form == normal_form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    options |= form == normal_form::nfkc || form == normal_form::nfkd ? UTF8PROC_COMPAT : 0;
    // Not utf8proc_map: it orders marks by exchanging neighbours, which is quadratic in a run of them.
    constexpr std::size_t most_points = 18; // that one code point decomposes to
    std::vector<utf8proc_int32_t> points;
    for (std::size_t i = 0; i < text.size() && points.size() <= longest;) {
        const auto c = code_point_at(text, i);
        i += c.bytes;
        const std::size_t before = points.size();
        points.resize(before + most_points);
        int last_class = 0;
        const auto made = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), points.data() + before,
                                                  most_points, static_cast<utf8proc_option_t>(options), &last_class);
        points.resize(before + static_cast<std::size_t>(made));
    }
    detail::order_marks(points);
    const auto size = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                               static_cast<utf8proc_option_t>(options));
    std::string out;
    for (const auto c : std::span(points).first(static_cast<std::size_t>(size)))
        append_utf8(out, static_cast<char32_t>(c));
    return out;
}

/// UTF-8 text with a mark per byte that tells whether it may be parsed as control tokens. User text is marked plain.
struct tagged_text {
    std::string bytes = {};
    std::string plain = {}; ///< 0 or 1 per byte, or empty if no byte is plain.

    [[nodiscard]] bool marked() const noexcept { return !plain.empty(); }

    /// Returns whether any byte of [begin, end) is plain.
    KVCACHE_LAZY [[nodiscard]] bool any_plain(std::size_t begin, std::size_t end) const {
        return marked() && std::string_view(plain).substr(begin, end - begin).find('\1') != std::string_view::npos;
    }

    KVCACHE_LAZY void append(std::string_view more, bool is_plain) {
        if (is_plain || marked()) {
            plain.resize(bytes.size(), '\0');
            plain.append(more.size(), is_plain ? '\1' : '\0');
        }
        bytes.append(more);
    }

    KVCACHE_LAZY [[nodiscard]] tagged_text sub(std::size_t begin, std::size_t end) const {
        return {bytes.substr(begin, end - begin), marked() ? plain.substr(begin, end - begin) : std::string{}};
    }
};

/// The 256 characters that represent bytes in byte-level tokenizers. A printable Latin-1 byte represents itself; the
/// others map to U+0100 and up, in order.
struct byte_alphabet {
    std::array<char32_t, 256> character_of{};
    std::array<std::int16_t, 0x144> byte_of{}; ///< -1 if the character represents no byte.

    constexpr byte_alphabet() {
        byte_of.fill(-1);
        char32_t next = 0x100;
        for (std::size_t b = 0; b < 256; ++b) {
            const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
            character_of[b] = printable ? static_cast<char32_t>(b) : next++;
            byte_of[character_of[b]] = static_cast<std::int16_t>(b);
        }
    }
};

/// The only byte alphabet, computed at compile time.
inline constexpr byte_alphabet the_byte_alphabet;

/// Appends the characters that represent `bytes`.
KVCACHE_LAZY inline void append_byte_characters(std::string& out, std::string_view bytes) {
    for (const char b : bytes)
        append_utf8(out, the_byte_alphabet.character_of[static_cast<unsigned char>(b)]);
}

/// Appends the bytes that the characters of `token` represent. A token with any other character is appended
/// unchanged.
KVCACHE_LAZY inline void append_written_bytes(std::string& out, std::string_view token) {
    const std::size_t before = out.size();
    for (std::size_t i = 0; i < token.size();) {
        const auto c = code_point_at(token, i);
        const std::int16_t byte =
            c.value < the_byte_alphabet.byte_of.size() ? the_byte_alphabet.byte_of[c.value] : std::int16_t{-1};
        if (byte < 0) {
            out.resize(before);
            out.append(token);
            return;
        }
        out.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
        i += c.bytes;
    }
}

}}} // namespace kvcache::text
