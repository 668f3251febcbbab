// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/joined.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/text/regex_dialect.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace kvcache::inline KVCACHE_ABI::text {

/// A compiled regular expression over UTF-8, with Unicode properties. Matching never recurses on the call stack and
/// is bounded: a hostile pattern or text ends in an error. Several threads may use one expression at once.
template <class...>
class basic_regex {
public:
    /// Compiles a pattern of tokenizer.json (Oniguruma's dialect). Errors name `field`.
    [[nodiscard]] static result<basic_regex> open(std::string_view pattern, const std::string& field) {
        constexpr std::size_t longest = 16384;
        if (pattern.size() > longest)
            return error{error_code::unsupported, field,
                         kvcache::detail::joined({"the pattern has ", std::to_string(pattern.size()),
                                                  " bytes; at most ", std::to_string(longest), " are compiled"})};
        const auto translated = pcre2_dialect(pattern, field);
        if (!translated)
            return translated.error();
        const std::unique_ptr<pcre2_compile_context, releaser> context(pcre2_compile_context_create(nullptr));
        pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
        // In Ruby ^ and $ match at line boundaries.
        constexpr std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
        int code = 0;
        PCRE2_SIZE offset = 0;
        basic_regex made;
        made.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(), options,
                                       &code, &offset, context.get()));
        if (!made.code_)
            return error{
                error_code::malformed, field,
                kvcache::detail::joined({"the pattern \"", pattern, "\" is no regular expression: ", words(code)})};
        // If PCRE2 has no JIT for this machine, its interpreter is used.
        (void)pcre2_jit_compile(made.code_.get(), PCRE2_JIT_COMPLETE);
        return made;
    }

    /// Calls `found(begin, end)` for every match in `text`, from left to right, without overlaps. An empty match at
    /// the end of the previous match is not reported. Requires: text is UTF-8. Errors: the expression exceeds its
    /// limits of steps or memory.
    template <class Found>
    [[nodiscard]] result<void> each_match(std::string_view text, Found found) const {
        const std::unique_ptr<pcre2_match_data, releaser> data(
            pcre2_match_data_create_from_pattern(code_.get(), nullptr));
        const std::unique_ptr<pcre2_match_context, releaser> context(pcre2_match_context_create(nullptr));
        pcre2_set_match_limit(
            context.get(), static_cast<std::uint32_t>(std::min<std::size_t>(1'000'000 + 32 * text.size(), 0xffffffff)));
        pcre2_set_heap_limit(context.get(), 256 * 1024); // in units of 1024 bytes
        const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
        std::optional<std::size_t> last_end;
        for (std::size_t at = 0; at <= text.size();) {
            int got = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), context.get());
            if (got == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter keeps its state on the heap
                got = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                                  context.get());
            if (got == PCRE2_ERROR_NOMATCH)
                break;
            if (got < 0)
                return error{error_code::out_of_range, "regular expression", words(got)};
            const PCRE2_SIZE* const where = pcre2_get_ovector_pointer(data.get());
            const std::size_t begin = where[0];
            const std::size_t end = where[1];
            if (begin > end)
                return error{error_code::unsupported, "regular expression", "a match ends before it begins"};
            if (begin == end && last_end == end) {
                at = end + 1;
                while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80)
                    ++at;
                continue;
            }
            at = end;
            last_end = end;
            found(begin, end);
        }
        return {};
    }

private:
    struct releaser {
        void operator()(pcre2_code* p) const noexcept { pcre2_code_free(p); }
        void operator()(pcre2_compile_context* p) const noexcept { pcre2_compile_context_free(p); }
        void operator()(pcre2_match_context* p) const noexcept { pcre2_match_context_free(p); }
        void operator()(pcre2_match_data* p) const noexcept { pcre2_match_data_free(p); }
    };

    [[nodiscard]] static std::string words(int code) {
        PCRE2_UCHAR buffer[256] = {};
        pcre2_get_error_message(code, buffer, sizeof buffer);
        return reinterpret_cast<const char*>(buffer);
    }

    std::unique_ptr<pcre2_code, releaser> code_;
};
using regex = basic_regex<>;

} // namespace kvcache::text
