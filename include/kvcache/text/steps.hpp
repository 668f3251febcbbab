// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/regex.hpp>
#include <kvcache/text/unicode.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

// Limits of the rules in a tokenizer.json, so that a hostile file costs an error and not the machine.

/// The longest text that the steps of a normalizer, or of a pre-tokenizer, may make from a text of `bytes` bytes. NFD
/// makes Hangul three times as long, the byte alphabet any text at most twice.
[[nodiscard]] constexpr std::size_t longest_from(std::size_t bytes) noexcept {
    constexpr std::size_t most = std::numeric_limits<std::int32_t>::max(); // symbols of a piece are counted in 32 bits
    return bytes > most / 8 ? most : 4 * bytes + (std::size_t{1} << 20);
}

/// The error of a step that makes too long a text from one of `bytes` bytes. `field` is the path of the step.
KVCACHE_LAZY [[nodiscard]] error too_long(const std::string& field, std::size_t bytes) {
    return {
        error_code::out_of_range, field,
        kvcache::detail::joined({"this step of tokenizer.json makes more than ", std::to_string(longest_from(bytes)),
                                 " bytes from a text of ", std::to_string(bytes)})};
}

/// Calls `add(position, type)` for a step, or for each step of a Sequence, whose steps are the member `list`; null is
/// none. Refuses more steps than any real tokenizer has. `steps` are those read so far.
template <class Steps, class Add>
void each_step(const json_reader& at, const char* list, const Steps& steps, Add add) {
    if (at.value().is_null())
        return;
    const std::string type = at.text("type");
    if (type == "Sequence")
        return at.member(list).each([&](const json_reader& one) { each_step(one, list, steps, add); });
    constexpr std::size_t most = 32;
    if (steps.size() >= most)
        at.refuse(error_code::out_of_range, "",
                  {"is a step too many; tokenizer.json may have ", std::to_string(most), " in a sequence"});
    if (!at.failed())
        add(at, type);
}

/// The pattern of a Replace or Split: a literal string or a regular expression. Copies share the expression.
template <class...>
class basic_pattern {
public:
    basic_pattern() = default;

    /// Reads {"String": ...}, {"Regex": ...}, or a bare string, which is a literal.
    [[nodiscard]] static basic_pattern open(const json_reader& at) {
        basic_pattern made;
        if (at.value().is_string()) {
            made.literal_ = at.text();
        } else if (at.has("String")) {
            made.literal_ = at.text("String");
        } else {
            const auto regexp = at.member("Regex");
            auto compiled = regex::open(regexp.text(), regexp.path());
            if (!compiled)
                at.refuse(compiled.error());
            else
                made.expression_ = std::make_shared<const regex>(std::move(*compiled));
        }
        return made;
    }
    [[nodiscard]] static basic_pattern of(regex expression) {
        basic_pattern made;
        made.expression_ = std::make_shared<const regex>(std::move(expression));
        return made;
    }

    /// Calls `found(begin, end)` for every match, from left to right, without overlaps. An empty literal never
    /// matches.
    template <class Found>
    [[nodiscard]] result<void> each_match(std::string_view text, Found found) const {
        if (expression_)
            return expression_->each_match(text, found);
        if (literal_.empty())
            return {};
        for (auto at = text.find(literal_); at != text.npos; at = text.find(literal_, at + literal_.size()))
            found(at, at + literal_.size());
        return {};
    }

private:
    std::string literal_;
    std::shared_ptr<const regex> expression_;
};
using pattern = basic_pattern<>;

/// SentencePiece's handling of spaces: each is replaced by a visible character, and one may be added before the text.
template <class...>
class basic_metaspace {
public:
    /// Reads the old form (add_prefix_space) and the new one (prepend_scheme, split).
    [[nodiscard]] static basic_metaspace open(const json_reader& at) {
        basic_metaspace made;
        made.replacement_ = at.text_or("replacement", made.replacement_);
        if (!is_one_code_point(made.replacement_))
            at.refuse(error_code::malformed, "replacement", "must be one character");
        const bool prefix = at.flag_or("add_prefix_space", true);
        const std::string name = at.text_or("prepend_scheme", prefix ? "always" : "never");
        if (name == "always")
            made.prepends_ = when::always;
        else if (name == "first")
            made.prepends_ = when::first;
        else if (name == "never")
            made.prepends_ = when::never;
        else
            at.refuse(error_code::unsupported, "prepend_scheme", {"the scheme \"", name, "\" is not known"});
        if (!prefix && made.prepends_ != when::never)
            at.refuse(error_code::malformed, "add_prefix_space", {"is false although prepend_scheme is ", name});
        made.split_ = at.flag_or("split", true);
        return made;
    }

    [[nodiscard]] const std::string& replacement() const noexcept { return replacement_; }
    [[nodiscard]] bool split() const noexcept { return split_; }
    [[nodiscard]] bool prepends() const noexcept { return prepends_ != when::never; }

    /// Appends `part` with its spaces replaced. `opens` tells whether it begins at the start of the input.
    void append(std::string_view part, bool opens, std::string& out) const {
        const bool begins_with_one = part.starts_with(' ') || part.starts_with(replacement_);
        if (!begins_with_one && (prepends_ == when::always || (prepends_ == when::first && opens)))
            out.append(replacement_);
        for (const char c : part) {
            if (c == ' ')
                out.append(replacement_);
            else
                out.push_back(c);
        }
    }

private:
    enum class when { always, first, never };

    std::string replacement_ = "\xe2\x96\x81";
    when prepends_ = when::always;
    bool split_ = true;
};
using metaspace = basic_metaspace<>;

}}} // namespace kvcache::text
