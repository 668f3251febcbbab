// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

namespace detail {

/// Rewrites one pattern. Each step reads the construct at `at_` and appends its PCRE2 equivalent.
template <class...>
class basic_dialect_rewriter {
public:
    basic_dialect_rewriter(std::string_view pattern, const std::string& field) : pattern_(pattern), field_(field) {}

    [[nodiscard]] result<std::string> run() {
        while (at_ < pattern_.size() && refusal_.empty())
            step();
        if (!refusal_.empty())
            return error{error_code::unsupported, field_,
                         kvcache::detail::joined(
                             {"the pattern \"", pattern_, "\" has ", refusal_, ", which this library does not run"})};
        return std::move(out_);
    }

private:
    [[nodiscard]] bool follows(std::string_view what) const { return pattern_.substr(at_).starts_with(what); }
    void take(std::size_t n) {
        out_.append(pattern_.substr(at_, n));
        at_ += n;
    }
    void write(std::string_view what, std::size_t taken) {
        out_.append(what);
        at_ += taken;
    }

    void step() {
        const char c = pattern_[at_];
        if (c == '\\')
            return escape();
        if (in_class_) {
            if (c == ']' && at_ > class_begin_)
                in_class_ = false;
            else if (c == '[')
                return refuse("a set inside a set");
            else if (follows("&&"))
                return refuse("the set operation &&");
            return take(1);
        }
        if (c == '[') {
            in_class_ = true;
            const std::size_t open = follows("[^") ? 2 : 1;
            class_begin_ = at_ + open;
            return take(open);
        }
        if (follows("(*") || follows("(?P="))
            return refuse(std::string(pattern_.substr(at_, 3)));
        // In Ruby x{1,3}+ repeats the group; in PCRE2 it is possessive.
        if (c == '}' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '+' && interval())
            return refuse("{...}+");
        take(1);
    }

    [[nodiscard]] bool interval() const {
        const auto open = pattern_.rfind('{', at_);
        if (open == std::string_view::npos || (open > 1 && pattern_[open - 2] == '\\'))
            return false;
        const auto inside = pattern_.substr(open + 1, at_ - open - 1);
        return inside.find_first_not_of("0123456789,") == std::string_view::npos;
    }

    void escape() {
        if (at_ + 1 == pattern_.size())
            return take(1);
        constexpr std::string_view word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
        const char c = pattern_[at_ + 1];
        if (c >= '1' && c <= '9') // the length that it compares is not paid for
            return in_class_ ? take(2) : refuse("a reference to a group");
        if (std::string_view("KgkNORXyYQE").find(c) != std::string_view::npos)
            return refuse(std::string("\\") + c);
        switch (c) {
        case 's': // PCRE2's \s contains U+180E, Unicode's White_Space does not
            return write(R"(\p{White_Space})", 2);
        case 'S':
            return write(R"(\P{White_Space})", 2);
        case 'w':
            // Outside a set, Oniguruma includes the superscript digits and fractions of Latin-1.
            return write(
                in_class_ ? std::string(word) : kvcache::detail::joined({"[", word, R"(\xb2\xb3\xb9\xbc-\xbe])"}), 2);
        case 'W':
            return in_class_ ? refuse("\\W inside a set")
                             : write(kvcache::detail::joined({"[^", word, R"(\xb2\xb3\xb9\xbc-\xbe])"}), 2);
        case 'h': // a hexadecimal digit, not PCRE2's horizontal space
            return write(in_class_ ? "0-9a-fA-F" : "[0-9a-fA-F]", 2);
        case 'H':
            return in_class_ ? refuse("\\H inside a set") : write("[^0-9a-fA-F]", 2);
        case 'u':
            return unicode_escape();
        case 'p':
        case 'P':
            return property();
        case 'b':
        case 'B':
            return in_class_ ? take(2) : refuse("\\b"); // its definition of a word differs
        default:
            return take(2);
        }
    }

    void unicode_escape() {
        const auto digits = pattern_.substr(at_ + 2, 4);
        if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
            return refuse("\\u without four digits");
        write("\\x{" + std::string(digits) + "}", 6);
    }

    void property() {
        if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{')
            return take(2);
        const auto close = pattern_.find('}', at_);
        if (close == std::string_view::npos)
            return refuse("\\p{ without }");
        auto name = pattern_.substr(at_ + 3, close - at_ - 3);
        const bool negated = name.starts_with('^');
        name.remove_prefix(negated ? 1 : 0);
        static constexpr std::array<std::string_view, 7> categories{"Letter", "Mark",      "Number", "Punctuation",
                                                                    "Symbol", "Separator", "Other"};
        static constexpr std::array<std::string_view, 7> binary{
            "Any", "Alphabetic", "White_Space", "Uppercase", "Lowercase", "Emoji", "Extended_Pictographic"};
        const auto* const category = ranges::find(categories, name);
        std::string said(name);
        if (category != categories.end())
            said = "LMNPSZC"[category - categories.begin()];
        else if (name.size() > 2 && ranges::find(binary, name) == binary.end())
            said = "sc:" + said; // PCRE2 reads a bare script name as script extensions
        write(kvcache::detail::joined({pattern_.substr(at_, 2), negated ? "{^" : "{", said, "}"}), close + 1 - at_);
    }

    void refuse(std::string what) { refusal_ = std::move(what); }

    std::string_view pattern_;
    const std::string& field_;
    std::string out_;
    std::string refusal_;
    std::size_t at_ = 0;
    std::size_t class_begin_ = 0;
    bool in_class_ = false;
};
using dialect_rewriter = basic_dialect_rewriter<>;

} // namespace detail

/// Translates a pattern of tokenizer.json from Oniguruma's (Ruby's) dialect to PCRE2's. Constructs with a different
/// meaning are rewritten. Errors: a construct that cannot be rewritten; the error names `field`.
KVCACHE_LAZY [[nodiscard]] inline result<std::string> pcre2_dialect(std::string_view pattern,
                                                                    const std::string& field) {
    return detail::dialect_rewriter(pattern, field).run();
}

/// A compiled regular expression over UTF-8, with Unicode properties. Matching never recurses on the call stack, and
/// its work is linear in the text: a hostile pattern or text ends in an error. Several threads may use one expression
/// at once.
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
        basic_regex made;
        made.field_ = field;
        made.step_cost_ = 1 + pattern.size() / 512; // a set of many ranges is searched for every character
        for (auto [code, option] : {std::pair(&made.quick_, PCRE2_USE_OFFSET_LIMIT), {&made.paid_, PCRE2_AUTO_CALLOUT}})
            if (const auto problem = compile(*translated, option, *code))
                return error{error_code::malformed, field,
                             kvcache::detail::joined(
                                 {"the pattern \"", pattern, "\" is no regular expression: ", words(*problem)})};
        return made;
    }

    /// Calls `found(begin, end)` for every match in `text`, from left to right, without overlaps. An empty match at
    /// the end of the previous match is not reported. Requires: text is UTF-8. Errors: the expression exceeds its
    /// limits of steps or memory.
    template <class Found>
    [[nodiscard]] result<void> each_match(std::string_view text, Found found) const {
        search run(*this, text);
        std::optional<std::size_t> last_end;
        for (std::size_t at = 0; at <= text.size();) {
            const int got = run.next(at);
            if (got == PCRE2_ERROR_NOMATCH)
                break;
            if (got < 0)
                return error{error_code::out_of_range, field_,
                             kvcache::detail::joined({"the pattern of tokenizer.json, on a text of ",
                                                      std::to_string(text.size()), " bytes: ", words(got)})};
            const auto [begin, end] = run.where();
            if (begin > end)
                return error{error_code::unsupported, field_, "a match ends before it begins"};
            at = end;
            if (begin == end && last_end == end) {
                at = after(text, end);
                continue;
            }
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
    using code_pointer = std::unique_ptr<pcre2_code, releaser>;

    /// The search of one text. A match is tried twice: first in the next few characters, with few backtracks, which
    /// decides almost every match of a real tokenizer. If that is not enough, with a callout at every item of the
    /// pattern, which pays for the characters passed since the last one: PCRE2's own limit counts neither those nor the
    /// positions where no match begins.
    class search {
    public:
        search(const basic_regex& of, std::string_view text)
            : of_(&of),
              text_(text),
              data_(pcre2_match_data_create_from_pattern(of.quick_.get(), nullptr)),
              quickly_(pcre2_match_context_create(nullptr)),
              paying_(pcre2_match_context_create(nullptr)),
              left_(65'536 + std::uint64_t{4096} * text.size()) {
            if (!data_ || !quickly_ || !paying_)
                throw std::bad_alloc();
            constexpr std::uint32_t backtracks = 16;
            pcre2_set_match_limit(quickly_.get(), backtracks);
            pcre2_set_match_limit(paying_.get(), std::numeric_limits<std::uint32_t>::max());
            pcre2_set_heap_limit(paying_.get(), 256 * 1024); // in units of 1024 bytes
            pcre2_set_callout(paying_.get(), pay, this);
        }
        search(const search&) = delete;
        search& operator=(const search&) = delete;

        /// Finds the next match that begins at `at` or later. Returns PCRE2's code.
        [[nodiscard]] int next(std::size_t at) {
            constexpr std::size_t starts = 32;
            constexpr std::size_t horizon = 128;
            for (int got = PCRE2_ERROR_NOMATCH; at <= text_.size();) {
                const std::size_t end = boundary(text_, std::min(at + horizon, text_.size()));
                const std::size_t last = std::min(at + starts, text_.size());
                pcre2_set_offset_limit(quickly_.get(), last);
                // With a hard partial match, an answer does not depend on the characters past `end`.
                got = match(*of_->quick_, *quickly_, {at, end}, end < text_.size() ? PCRE2_PARTIAL_HARD : 0);
                if (got >= 0)
                    return got;
                if (got != PCRE2_ERROR_NOMATCH) {
                    got = match(*of_->paid_, *paying_, {at, text_.size()}, 0);
                    if (got == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter keeps its state on the heap
                        got = match(*of_->paid_, *paying_, {at, text_.size()}, PCRE2_NO_JIT);
                    return got;
                }
                at = after(text_, last);
            }
            return PCRE2_ERROR_NOMATCH;
        }
        [[nodiscard]] std::pair<std::size_t, std::size_t> where() const {
            const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(data_.get());
            return {found[0], found[1]};
        }

    private:
        [[nodiscard]] int match(const pcre2_code& code, pcre2_match_context& limits,
                                std::pair<std::size_t, std::size_t> range, std::uint32_t options) {
            position_ = range.first;
            return pcre2_match(&code, reinterpret_cast<PCRE2_SPTR>(text_.data()), range.second, range.first,
                               PCRE2_NO_UTF_CHECK | options, data_.get(), &limits);
        }

        static int pay(pcre2_callout_block* at, void* data) noexcept {
            search& own = *static_cast<search*>(data);
            const std::uint64_t passed = at->current_position > own.position_ ? at->current_position - own.position_
                                                                              : own.position_ - at->current_position;
            own.position_ = at->current_position;
            const std::uint64_t price = (16 + passed) * own.of_->step_cost_; // a callout costs as much as 16 characters
            if (price > own.left_)
                return PCRE2_ERROR_MATCHLIMIT;
            own.left_ -= price;
            return 0;
        }

        const basic_regex* of_;
        std::string_view text_;
        std::unique_ptr<pcre2_match_data, releaser> data_;
        std::unique_ptr<pcre2_match_context, releaser> quickly_;
        std::unique_ptr<pcre2_match_context, releaser> paying_;
        std::uint64_t left_;       // what callouts may still spend
        std::size_t position_ = 0; // of the last callout
    };

    /// Compiles a translated pattern. Returns PCRE2's code of an error.
    [[nodiscard]] static std::optional<int> compile(const std::string& pattern, std::uint32_t option,
                                                    code_pointer& to) {
        const std::unique_ptr<pcre2_compile_context, releaser> context(pcre2_compile_context_create(nullptr));
        if (!context)
            throw std::bad_alloc();
        pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
        // In Ruby ^ and $ match at line boundaries.
        constexpr std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
        int code = 0;
        PCRE2_SIZE offset = 0;
        to.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options | option, &code,
                               &offset, context.get()));
        if (!to)
            return code;
        // If PCRE2 has no JIT for this machine, its interpreter is used.
        (void)pcre2_jit_compile(to.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
        return std::nullopt;
    }

    /// Returns the first offset from `at` on where a code point begins or the text ends.
    [[nodiscard]] static std::size_t boundary(std::string_view text, std::size_t at) noexcept {
        while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80)
            ++at;
        return at;
    }
    [[nodiscard]] static std::size_t after(std::string_view text, std::size_t at) noexcept {
        return boundary(text, at + 1);
    }

    [[nodiscard]] static std::string words(int code) {
        PCRE2_UCHAR buffer[256] = {};
        pcre2_get_error_message(code, buffer, sizeof buffer);
        return reinterpret_cast<const char*>(buffer);
    }

    code_pointer quick_;
    code_pointer paid_;
    std::string field_;
    std::uint64_t step_cost_ = 1;
};
using regex = basic_regex<>;

}}} // namespace kvcache::text
