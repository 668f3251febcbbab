// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/steps.hpp>
#include <kvcache/text/unicode.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
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
        each_step(at, "decoders", made.steps_,
                  [&](const json_reader& one, const std::string& type) { made.add(one, type); });
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

    void add(const json_reader& at, const std::string& type) {
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
        if (!is_one_code_point(made.content))
            at.refuse(error_code::malformed, "content", "must be one character");
        steps_.push_back(std::move(made));
    }

    std::vector<step> steps_;
    bool joins_by_space_ = true;
};
using decoder = basic_decoder<>;

/// The working state of one decoding. Text is output as soon as no later token can change it.
template <class... Any>
class basic_decoder<Any...>::run {
public:
    /// Requires: `rules` outlives this.
    explicit run(const basic_decoder& rules) : rules_(&rules), stages_(rules.steps_.size()) {
        bool fused = false;
        for (std::size_t i = 0; i < stages_.size(); ++i) {
            stages_[i].fused = fused;
            fused = fused || rules.steps_[i].is == kind::fuse || rules.steps_[i].is == kind::byte_level;
        }
    }

    /// Decodes the next token and appends the text that is complete.
    void push(std::string_view token, std::string& out) {
        if (rules_->joins_by_space_) {
            if (started_)
                out.push_back(' ');
            started_ = true;
        }
        pass_on(0, std::string(token), out);
    }

    /// Appends the text held back, with invalid bytes as U+FFFD. A new text may follow.
    void finish(std::string& out) {
        for (std::size_t i = 0; i < stages_.size(); ++i)
            end(rules_->steps_[i], i, out);
        *this = run(*rules_);
    }

private:
    /// The state of a step. After a fuse step, the later steps receive one token in fragments (`fused`).
    struct stage {
        bool fused = false;
        std::string held = {};
        std::size_t count = 0; ///< Tokens seen, or strings stripped.
        bool past_start = false;
    };

    void pass_on(std::size_t i, std::string token, std::string& out) {
        if (i == stages_.size())
            out.append(token);
        else
            take(rules_->steps_[i], i, std::move(token), out);
    }

    void take(const step& one, std::size_t i, std::string token, std::string& out) {
        switch (one.is) {
        case kind::byte_level:
            return take_characters(i, token, out);
        case kind::byte_fallback:
            return take_byte(i, std::move(token), out);
        case kind::fuse:
            return pass_on(i + 1, std::move(token), out);
        case kind::replace:
            return take_replaced(one, i, token, out);
        case kind::strip:
            return take_stripped(one, i, std::move(token), out);
        case kind::spaces:
            return take_spaces(one.spaces, i, token, out);
        }
    }
    void end(const step& one, std::size_t i, std::string& out) {
        switch (one.is) {
        case kind::byte_level:
            return end_characters(i, out);
        case kind::byte_fallback:
            return end_bytes(i, out);
        case kind::replace:
            if (stages_[i].fused)
                pass_on(i + 1, replaced(one, stages_[i].held), out);
            return;
        case kind::strip:
            strip_stop(one, stages_[i].held);
            return pass_on(i + 1, std::move(stages_[i].held), out);
        case kind::fuse:
        case kind::spaces:
            return;
        }
    }

    void take_characters(std::size_t i, std::string_view token, std::string& out) {
        stage& at = stages_[i];
        if (at.fused) { // only the whole token shows whether it represents bytes
            at.held += token;
            return;
        }
        append_written_bytes(at.held, token);
        std::string complete;
        take_complete_utf8(at.held, complete);
        if (!complete.empty())
            pass_on(i + 1, std::move(complete), out);
    }
    void end_characters(std::size_t i, std::string& out) {
        stage& at = stages_[i];
        std::string bytes = at.fused ? std::string{} : std::move(at.held);
        if (at.fused)
            append_written_bytes(bytes, at.held);
        std::string complete;
        take_complete_utf8(bytes, complete);
        if (!bytes.empty()) // an incomplete code point
            complete += replacement_character;
        pass_on(i + 1, std::move(complete), out);
    }

    void take_byte(std::size_t i, std::string token, std::string& out) {
        stage& at = stages_[i];
        if (at.fused) {
            at.held += token;
            return;
        }
        if (const auto byte = try_byte(token)) {
            at.held.push_back(*byte);
            return;
        }
        release_bytes(i, out);
        pass_on(i + 1, std::move(token), out);
    }
    void end_bytes(std::size_t i, std::string& out) {
        stage& at = stages_[i];
        if (!at.fused)
            return release_bytes(i, out);
        std::string token = std::move(at.held);
        at.held.clear();
        if (const auto byte = try_byte(token)) {
            at.held.push_back(*byte);
            return release_bytes(i, out);
        }
        pass_on(i + 1, std::move(token), out);
    }
    /// Outputs the held bytes: as text if all of them are valid UTF-8, else one U+FFFD per byte.
    void release_bytes(std::size_t i, std::string& out) {
        std::string bytes = std::move(stages_[i].held);
        stages_[i].held.clear();
        if (bytes.empty())
            return;
        if (!first_invalid_utf8(bytes))
            return pass_on(i + 1, std::move(bytes), out);
        for (std::size_t n = 0; n < bytes.size(); ++n)
            pass_on(i + 1, std::string(replacement_character), out);
    }
    [[nodiscard]] static std::optional<char> try_byte(std::string_view token) {
        if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>'))
            return std::nullopt;
        unsigned value = 0;
        const auto [end, problem] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
        return problem == std::errc{} && end == token.data() + 5
                   ? std::optional(static_cast<char>(static_cast<unsigned char>(value)))
                   : std::nullopt;
    }

    void take_replaced(const step& one, std::size_t i, std::string_view token, std::string& out) {
        if (stages_[i].fused) // a match may span fragments
            stages_[i].held += token;
        else
            pass_on(i + 1, replaced(one, token), out);
    }
    [[nodiscard]] static std::string replaced(const step& one, std::string_view token) {
        constexpr std::size_t most = std::size_t{1} << 20; // bytes that a step may add
        std::string made;
        std::size_t done = 0;
        const auto searched = one.what.each_match(token, [&](std::size_t begin, std::size_t match_end) {
            if (made.size() <= token.size() + most)
                made.append(token.substr(done, begin - done)).append(one.content);
            done = match_end;
        });
        if (!searched || made.size() > token.size() + most) // a token stays unchanged where a step exceeds its limits
            return std::string(token);
        return made.append(token.substr(done));
    }

    void take_stripped(const step& one, std::size_t i, std::string token, std::string& out) {
        stage& at = stages_[i];
        if (!at.fused) {
            std::size_t taken = 0;
            strip_start(one, token, taken);
            strip_stop(one, token);
            return pass_on(i + 1, std::move(token), out);
        }
        if (!at.past_start)
            at.past_start = strip_start(one, token, at.count);
        at.held += token;
        std::string kept = at.held;
        strip_stop(one, kept); // text that may be the end is held back
        at.held.erase(0, kept.size());
        if (!kept.empty())
            pass_on(i + 1, std::move(kept), out);
    }
    /// Strips the start of a token. Returns whether the start of the text is complete.
    static bool strip_start(const step& one, std::string& token, std::size_t& taken) {
        std::size_t begin = 0;
        for (; taken < one.start && std::string_view(token).substr(begin).starts_with(one.content); ++taken)
            begin += one.content.size();
        token.erase(0, begin);
        return taken == one.start || !token.empty();
    }
    static void strip_stop(const step& one, std::string& token) {
        for (std::size_t n = 0; n < one.stop && token.ends_with(one.content); ++n)
            token.resize(token.size() - one.content.size());
    }

    void take_spaces(const metaspace& step, std::size_t i, std::string_view token, std::string& out) {
        stage& at = stages_[i];
        const bool first = at.count == 0 && step.prepends();
        if (!at.fused)
            ++at.count;
        std::string made;
        for (std::size_t c = 0; c < token.size();) {
            if (token.substr(c).starts_with(step.replacement())) {
                if (!first)
                    made.push_back(' ');
                c += step.replacement().size();
            } else {
                made.push_back(token[c++]);
            }
        }
        pass_on(i + 1, std::move(made), out);
    }
    const basic_decoder* rules_;
    std::vector<stage> stages_;
    bool started_ = false;
};

}}} // namespace kvcache::text
