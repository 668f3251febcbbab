// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/unicode.hpp>

#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// SentencePiece's handling of spaces: each is replaced by a visible character, and one may be added before the text.
template <class...>
class basic_metaspace {
public:
    /// Reads the old form (add_prefix_space) and the new one (prepend_scheme, split).
    [[nodiscard]] static basic_metaspace open(const json_reader& at) {
        basic_metaspace made;
        made.replacement_ = at.text_or("replacement", made.replacement_);
        if (made.replacement_.empty() || code_point_at(made.replacement_, 0).bytes != made.replacement_.size())
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
