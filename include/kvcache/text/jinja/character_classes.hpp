// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/unicode.hpp>

#include <cstddef>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Whether a character has a case, and which; a title-case letter has none of the two.
enum class cased { none, lower, upper, title };

/// Returns the case of a character.
KVCACHE_LAZY [[nodiscard]] inline cased case_of(char32_t c) {
    const auto code = static_cast<utf8proc_int32_t>(c);
    return utf8proc_category(code) == UTF8PROC_CATEGORY_LT ? cased::title
           : utf8proc_islower(code) != 0                   ? cased::lower
           : utf8proc_isupper(code) != 0                   ? cased::upper
                                                           : cased::none;
}

/// Returns whether a character is a letter (general category L*).
KVCACHE_LAZY [[nodiscard]] inline bool is_letter(char32_t c) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

/// Returns the answer of Python's string method of this name: isdigit, isspace, isalpha, isalnum, isdecimal, isnumeric,
/// isupper, islower or isascii. Cost: O(bytes).
KVCACHE_LAZY [[nodiscard]] inline bool is_of_class(std::string_view text, std::string_view method) {
    bool has_case = false;
    for (std::size_t i = 0; i < text.size();) {
        const auto c = code_point_at(text, i);
        const bool decimal = utf8proc_category(static_cast<utf8proc_int32_t>(c.value)) == UTF8PROC_CATEGORY_ND;
        const cased its_case = case_of(c.value);
        const bool belongs = method == "isspace"     ? is_white_space(c.value) || (c.value >= 0x1c && c.value <= 0x1f)
                             : method == "isalpha"   ? is_letter(c.value)
                             : method == "isalnum"   ? is_letter(c.value) || is_number(c.value)
                             : method == "isnumeric" ? is_number(c.value)
                             : method == "isascii"   ? c.value < 0x80
                             : method == "isupper"   ? its_case == cased::upper || its_case == cased::none
                             : method == "islower"   ? its_case == cased::lower || its_case == cased::none
                             : method == "isdigit"
                                 ? decimal || (c.value >= 0x2070 && c.value < 0x208a && is_number(c.value)) ||
                                       c.value == 0xb2 || c.value == 0xb3 || c.value == 0xb9
                                 : decimal;
        if (!belongs)
            return false;
        has_case = has_case || its_case != cased::none;
        i += c.bytes;
    }
    if (method == "isupper" || method == "islower")
        return has_case;
    return !text.empty() || method == "isascii";
}

}}} // namespace kvcache::text::jinja
