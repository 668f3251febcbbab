// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/metaspace.hpp>
#include <kvcache/text/pattern.hpp>
#include <kvcache/text/text_limits.hpp>
#include <kvcache/text/unicode.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// Converts tokens to text: the `decoder` of tokenizer.json, as one sequence of steps. It works token by token (see
/// run), so streamed text equals text decoded at once.
template <class...>
class basic_decoder {
public:
    class run;

    basic_decoder() = default;

    /// Reads a decoder; null joins tokens with spaces. An unknown type is an error that names it.
    [[nodiscard]] static basic_decoder open(const json_reader& at) {
        basic_decoder made;
        made.joins_by_space_ = at.value().is_null();
        made.add(at);
        return made;
    }

private:
    enum class kind { byte_level, byte_fallback, fuse, replace, strip, spaces };
    struct step {
        kind is = kind::fuse;
        pattern what = {}; // replace: the pattern to replace by the content
        std::string content = {};
        std::size_t start = 0; // strip: how often the content is removed at the start
        std::size_t stop = 0;
        metaspace spaces = {};
    };

    void add(const json_reader& at) {
        if (at.value().is_null())
            return;
        const std::string type = at.text("type");
        if (type == "Sequence")
            return at.member("decoders").each([&](const json_reader& one) { add(one); });
        check_steps(at, steps_.size());
        if (at.failed())
            return;
        if (type == "ByteLevel")
            steps_.push_back({.is = kind::byte_level});
        else if (type == "ByteFallback")
            steps_.push_back({.is = kind::byte_fallback});
        else if (type == "Fuse")
            steps_.push_back({.is = kind::fuse});
        else if (type == "Replace")
            steps_.push_back(
                {.is = kind::replace, .what = pattern::open(at.member("pattern")), .content = at.text("content")});
        else if (type == "Strip")
            add_strip(at);
        else if (type == "Metaspace")
            steps_.push_back({.is = kind::spaces, .spaces = metaspace::open(at)});
        else
            at.refuse(error_code::unsupported, "type", {"the decoder \"", type, "\" is not known"});
    }

    void add_strip(const json_reader& at) {
        constexpr std::uint64_t most = 4096;
        step made{.is = kind::strip,
                  .content = at.text("content"),
                  .start = static_cast<std::size_t>(at.member("start").number(most)),
                  .stop = static_cast<std::size_t>(at.member("stop").number(most))};
        if (made.content.empty() || code_point_at(made.content, 0).bytes != made.content.size())
            at.refuse(error_code::malformed, "content", "must be one character");
        steps_.push_back(std::move(made));
    }

    std::vector<step> steps_;
    bool joins_by_space_ = true;
};
using decoder = basic_decoder<>;

}}} // namespace kvcache::text
