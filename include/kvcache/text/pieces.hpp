// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/pattern.hpp>

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

}}} // namespace kvcache::text
