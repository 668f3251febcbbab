// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/steps.hpp>
#include <kvcache/text/unicode.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// A part of a text, [begin, end) in bytes.
struct piece {
    std::size_t begin = 0;
    std::size_t end = 0;
};

/// A text split into pieces, in order. Text between two pieces is dropped. No piece is empty.
struct pieces {
    std::string text = {};
    std::vector<piece> parts = {};
    bool opens_input = false; ///< The first piece begins at the start of the whole input.

    [[nodiscard]] std::string_view view(const piece& p) const {
        return std::string_view(text).substr(p.begin, p.end - p.begin);
    }
};

/// What happens to the matches when a piece is split at them.
enum class split_behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Reads a behavior in the spelling of tokenizer.json.
KVCACHE_LAZY [[nodiscard]] inline split_behavior read_split_behavior(const json_reader& at) {
    const std::string name = at.text();
    if (name == "Removed")
        return split_behavior::removed;
    if (name == "Isolated")
        return split_behavior::isolated;
    if (name == "MergedWithPrevious")
        return split_behavior::merged_with_previous;
    if (name == "MergedWithNext")
        return split_behavior::merged_with_next;
    if (name != "Contiguous")
        at.refuse(error_code::unsupported, "", {"the behavior \"", name, "\" is not known"});
    return split_behavior::contiguous;
}

/// Collects the matches in one piece and splits it at them.
template <class...>
class basic_piece_splitter {
public:
    basic_piece_splitter(split_behavior behavior, bool inverted) : behavior_(behavior), inverted_(inverted) {}

    void begin(const piece& whole) {
        spans_.clear();
        whole_ = whole;
        done_ = whole.begin;
    }
    /// Adds a match, in bytes of the text.
    void match(std::size_t begin, std::size_t end) {
        if (done_ != begin)
            spans_.push_back({{done_, begin}, inverted_});
        spans_.push_back({{begin, end}, !inverted_});
        done_ = end;
    }
    /// Appends the parts of the piece to `out`.
    void finish(std::vector<piece>& out) {
        if (done_ != whole_.end)
            spans_.push_back({{done_, whole_.end}, inverted_});
        join();
        for (const span& s : spans_)
            if (s.where.begin < s.where.end && !(behavior_ == split_behavior::removed && s.matched))
                out.push_back(s.where);
    }

private:
    struct span {
        piece where = {};
        bool matched = false;
    };

    void join() {
        if (behavior_ == split_behavior::removed || behavior_ == split_behavior::isolated)
            return;
        std::vector<span> joined;
        bool previous = false;
        const auto add = [&](const span& s, bool merges, bool backwards) {
            if (merges && !joined.empty()) {
                if (backwards)
                    joined.back().where.begin = s.where.begin;
                else
                    joined.back().where.end = s.where.end;
            } else {
                joined.push_back(s);
            }
            previous = s.matched;
        };
        if (behavior_ == split_behavior::merged_with_next) {
            for (auto s = spans_.rbegin(); s != spans_.rend(); ++s)
                add(*s, s->matched && !previous, true);
            spans_.assign(joined.rbegin(), joined.rend());
            return;
        }
        for (const span& s : spans_)
            add(s, behavior_ == split_behavior::contiguous ? s.matched == previous : s.matched && !previous, false);
        spans_ = std::move(joined);
    }

    split_behavior behavior_;
    bool inverted_;
    piece whole_ = {};
    std::size_t done_ = 0;
    std::vector<span> spans_;
};
using piece_splitter = basic_piece_splitter<>;

/// Splits normalized text into the pieces that the model encodes one by one: the `pre_tokenizer` of tokenizer.json,
/// as one sequence of steps.
template <class...>
class basic_pre_tokenizer {
public:
    basic_pre_tokenizer() = default;

    /// Reads a pre-tokenizer; null is none. An unknown type is an error that names it.
    [[nodiscard]] static basic_pre_tokenizer open(const json_reader& at) {
        basic_pre_tokenizer made;
        each_step(at, "pretokenizers", made.steps_,
                  [&](const json_reader& one, const std::string& type) { made.add(one, type); });
        return made;
    }

    /// Splits `text`. Requires: text is UTF-8. Errors: a pattern exceeds its limits, or the text becomes longer than
    /// `longest_from`; the error names the step.
    [[nodiscard]] result<void> apply(pieces& text) const {
        const std::size_t bytes = text.text.size();
        for (const step& one : steps_) {
            if (auto done = run(one, text); !done)
                return done;
            if (text.text.size() > longest_from(bytes))
                return too_long(one.field, bytes);
        }
        return {};
    }

private:
    enum class kind {
        split,       ///< Splits at the matches of a pattern.
        split_class, ///< Splits at the characters of a class.
        add_space,
        to_byte_alphabet,
        spaces,
    };
    struct step {
        kind is = kind::split;
        pattern what = {};
        bool (*holds)(char32_t) = nullptr;
        split_behavior behavior = split_behavior::isolated;
        bool inverted = false;
        metaspace spaces = {};
        std::string field = {};
    };

    void add(const json_reader& at, const std::string& type) {
        const std::size_t before = steps_.size();
        if (type == "ByteLevel")
            add_byte_level(at);
        else if (type == "Split")
            steps_.push_back({.is = kind::split,
                              .what = pattern::open(at.member("pattern")),
                              .behavior = read_split_behavior(at.member("behavior")),
                              .inverted = at.flag_or("invert", false)});
        else if (type == "Digits")
            steps_.push_back({.is = kind::split_class,
                              .holds = is_number,
                              .behavior = at.flag_or("individual_digits", false) ? split_behavior::isolated
                                                                                 : split_behavior::contiguous});
        else if (type == "Punctuation")
            steps_.push_back({.is = kind::split_class,
                              .holds = is_punctuation,
                              .behavior = at.has("behavior") ? read_split_behavior(at.member("behavior"))
                                                             : split_behavior::isolated});
        else if (type == "WhitespaceSplit")
            steps_.push_back({.is = kind::split_class, .holds = is_white_space, .behavior = split_behavior::removed});
        else if (type == "Whitespace")
            add_expression(at, R"([\w\u200c\u200d]+|[^\w\u200c\u200d\s]+)", split_behavior::removed, true);
        else if (type == "Metaspace")
            steps_.push_back({.is = kind::spaces, .spaces = metaspace::open(at)});
        else
            at.refuse(error_code::unsupported, "type", {"the pre-tokenizer \"", type, "\" is not known"});
        for (std::size_t i = before; i < steps_.size(); ++i)
            steps_[i].field = at.path();
    }

    void add_byte_level(const json_reader& at) {
        if (at.flag_or("add_prefix_space", true))
            steps_.push_back({.is = kind::add_space});
        if (at.flag_or("use_regex", true))
            add_expression(at, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                           split_behavior::isolated, false);
        steps_.push_back({.is = kind::to_byte_alphabet});
    }

    void add_expression(const json_reader& at, std::string_view expression, split_behavior behavior, bool inverted) {
        auto compiled = regex::open(expression, at.path());
        if (!compiled)
            return at.refuse(compiled.error());
        steps_.push_back(
            {.is = kind::split, .what = pattern::of(std::move(*compiled)), .behavior = behavior, .inverted = inverted});
    }

    static result<void> run(const step& one, pieces& text) {
        switch (one.is) {
        case kind::split:
            return split(one, text);
        case kind::split_class:
            return split_class(one, text);
        case kind::add_space:
            rewrite(text, [](std::string_view part, bool, std::string& out) {
                if (!part.starts_with(' '))
                    out.push_back(' ');
                out.append(part);
            });
            break;
        case kind::to_byte_alphabet:
            rewrite(text, [](std::string_view part, bool, std::string& out) { append_byte_characters(out, part); });
            break;
        case kind::spaces:
            return replace_spaces(one.spaces, text);
        }
        return {};
    }

    /// Cuts every piece at matches: `find(piece, splitter)` tells the splitter those of a piece.
    template <class Find>
    static result<void> cut(pieces& text, split_behavior behavior, bool inverted, Find find) {
        std::vector<piece> parts;
        piece_splitter splitter(behavior, inverted);
        for (const piece& p : text.parts) {
            splitter.begin(p);
            if (result<void> searched = find(p, splitter); !searched)
                return searched;
            splitter.finish(parts);
        }
        // If the first piece was removed, no piece is at the start of the input.
        text.opens_input = text.opens_input && !parts.empty() && parts[0].begin == text.parts[0].begin;
        text.parts = std::move(parts);
        return {};
    }

    static result<void> split(const step& one, pieces& text) {
        return cut(text, one.behavior, one.inverted, [&](const piece& p, piece_splitter& to) {
            return one.what.each_match(
                text.view(p), [&](std::size_t begin, std::size_t end) { to.match(p.begin + begin, p.begin + end); });
        });
    }

    static result<void> split_class(const step& one, pieces& text) {
        return cut(text, one.behavior, false, [&](const piece& p, piece_splitter& to) {
            each_code_point(text.view(p), [&](code_point c, std::size_t at) {
                if (one.holds(c.value))
                    to.match(p.begin + at, p.begin + at + c.bytes);
            });
            return result<void>();
        });
    }

    static result<void> replace_spaces(const metaspace& step, pieces& text) {
        rewrite(text, [&](std::string_view part, bool opens, std::string& out) { step.append(part, opens, out); });
        if (!step.split())
            return {};
        return cut(text, split_behavior::merged_with_next, false, [&](const piece& p, piece_splitter& to) {
            const std::size_t size = step.replacement().size();
            for (auto at = text.text.find(step.replacement(), p.begin); at < p.end;
                 at = text.text.find(step.replacement(), at + size))
                to.match(at, at + size);
            return result<void>();
        });
    }

    /// Rewrites every piece with `write(part, opens_input, out)`, where opens_input is true for a piece at the start
    /// of the input.
    template <class Write>
    static void rewrite(pieces& text, Write write) {
        std::string out;
        out.reserve(text.text.size() + text.text.size() / 4);
        bool opens = text.opens_input;
        for (piece& p : text.parts) {
            const std::size_t begin = out.size();
            write(text.view(p), opens, out);
            p = {begin, out.size()};
            opens = false;
        }
        text.text = std::move(out);
    }

    std::vector<step> steps_;
};
using pre_tokenizer = basic_pre_tokenizer<>;

}}} // namespace kvcache::text
