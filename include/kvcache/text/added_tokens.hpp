// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/normalizer.hpp>
#include <kvcache/text/regex.hpp>
#include <kvcache/text/unicode.hpp>
#include <kvcache/text/vocabulary.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// A token that is matched in the text before the model encodes it.
struct added_token {
    std::string content = {};
    std::int32_t id = 0;
    bool special = false;     ///< Omitted from decoded text on request.
    bool single_word = false; ///< Matches only between characters that are not letters, digits or _.
    bool lstrip = false;      ///< The match includes the white space before it.
    bool rstrip = false;      ///< The match includes the white space after it.
    bool normalized = false;  ///< Matches in normalized text, not in the original text.
    bool control = false;     ///< Never parsed from text that is marked plain.
};

/// A part of a text: an added token, or text for the model.
struct added_span {
    std::optional<std::int32_t> token = {};
    std::size_t begin = 0;
    std::size_t end = 0;
};

/// Finds one set of added tokens: the longest at each position, from left to right, without overlaps.
template <class...>
class basic_added_token_finder {
public:
    void add(std::string_view content, const added_token* token) {
        std::uint32_t node = 0;
        for (const char c : content) {
            const auto [edge, made] = edges_.try_emplace(key(node, c), static_cast<std::uint32_t>(ends_.size()));
            if (made)
                ends_.push_back(nullptr);
            node = edge->second;
        }
        if (!content.empty()) {
            ends_[node] = token;
            begins_[static_cast<unsigned char>(content[0])] = true;
        }
    }

    [[nodiscard]] bool empty() const noexcept { return edges_.empty(); }

    /// Returns the longest token that matches at `at`, and the end of the match. Adds the bytes it has read to `read`.
    [[nodiscard]] std::pair<const added_token*, std::size_t> longest(const tagged_text& text, std::size_t at,
                                                                     std::size_t& read) const {
        std::pair<const added_token*, std::size_t> best{nullptr, at};
        if (!begins_[static_cast<unsigned char>(text.bytes[at])])
            return best;
        std::uint32_t node = 0;
        bool plain = false;
        for (std::size_t i = at; i < text.bytes.size(); ++i, ++read) {
            const auto edge = edges_.find(key(node, text.bytes[i]));
            if (edge == edges_.end())
                break;
            node = edge->second;
            plain = plain || (text.marked() && text.plain[i] != '\0');
            if (ends_[node] && !(plain && ends_[node]->control))
                best = {ends_[node], i + 1};
        }
        return best;
    }

private:
    [[nodiscard]] static std::uint64_t key(std::uint32_t node, char c) noexcept {
        return (std::uint64_t{node} << 8) | static_cast<unsigned char>(c);
    }

    std::unordered_map<std::uint64_t, std::uint32_t> edges_;
    std::vector<const added_token*> ends_{nullptr};
    std::array<bool, 256> begins_{};
};
using added_token_finder = basic_added_token_finder<>;

/// The `added_tokens` of tokenizer.json. Neither copied nor moved, because its finders refer to it.
template <class...>
class basic_added_tokens {
public:
    basic_added_tokens() = default;
    basic_added_tokens(const basic_added_tokens&) = delete;
    basic_added_tokens& operator=(const basic_added_tokens&) = delete;

    /// Reads the tokens. Errors: a token whose id or string the model assigns differently.
    void read(const json_reader& at, const vocabulary& model) {
        at.each([&](const json_reader& one) {
            added_token t;
            t.content = one.text("content");
            t.id = static_cast<std::int32_t>(one.member("id").number(4 * model.size() + 65536));
            t.special = one.flag_or("special", false);
            t.single_word = one.flag_or("single_word", false);
            t.lstrip = one.flag_or("lstrip", false);
            t.rstrip = one.flag_or("rstrip", false);
            t.normalized = one.flag_or("normalized", !t.special);
            if (one.failed() || t.content.empty())
                return;
            const auto known = model.try_id(t.content);
            const auto* other = model.try_token(t.id);
            if ((known && *known != t.id) || (other && *other != t.content))
                return one.refuse(
                    error_code::malformed, "id",
                    {"the vocabulary gives ", known ? "\"" + t.content + "\" the id " + std::to_string(*known)
                                                    : "the id " + std::to_string(t.id) + " to \"" + *other + "\""});
            const auto [by_id, fresh] = by_id_.try_emplace(t.id, tokens_.size());
            if (!fresh && tokens_[by_id->second].content != t.content)
                return one.refuse(error_code::malformed, "id",
                                  {std::to_string(t.id), " is the id of \"", tokens_[by_id->second].content, "\" too"});
            const auto [by_content, first] = by_content_.try_emplace(t.content, t.id);
            if (!first && by_content->second != t.id)
                return one.refuse(error_code::malformed, "content", {"\"", t.content, "\" is added twice"});
            needs_words_ = needs_words_ || t.single_word;
            if (fresh)
                tokens_.push_back(std::move(t));
            else
                tokens_[by_id->second] = std::move(t);
        });
    }

    /// Builds the finders; no token is added afterwards. `is_control(token)` selects the tokens that are never parsed
    /// from plain text. Errors: a pattern exceeds its limits, or the tokens have more than 8 MiB.
    template <class IsControl>
    [[nodiscard]] result<void> index(const normalizer& rules, IsControl is_control) {
        if (needs_words_) {
            auto word = regex::open(R"([\w\u200c\u200d])", "added_tokens");
            if (!word)
                return word.error();
            word_ = std::make_unique<const regex>(std::move(*word));
        }
        constexpr std::size_t most = std::size_t{8} << 20;
        std::size_t bytes = 0;
        for (added_token& t : tokens_) {
            t.control = is_control(std::as_const(t));
            tagged_text written{t.content, {}};
            if (t.normalized)
                if (auto done = rules.apply(written); !done)
                    return done;
            if (bytes += written.bytes.size(); bytes > most)
                return error{error_code::out_of_range, "added_tokens",
                             "the added tokens of tokenizer.json have more than 8 MiB"};
            (t.normalized ? in_normalized_ : in_raw_).add(written.bytes, &t);
        }
        return {};
    }

    [[nodiscard]] const std::vector<added_token>& all() const noexcept { return tokens_; }
    [[nodiscard]] const added_token* try_find(std::int32_t id) const {
        const auto found = by_id_.find(id);
        return found == by_id_.end() ? nullptr : &tokens_[found->second];
    }
    [[nodiscard]] const added_token* try_find(std::string_view content) const {
        const auto found = by_content_.find(std::string(content));
        return found == by_content_.end() ? nullptr : try_find(found->second);
    }

    /// Splits `text` at the tokens that match in normalized text, or at those that match in the original text. Errors:
    /// long beginnings of tokens make the search slow.
    [[nodiscard]] result<std::vector<added_span>> split(const tagged_text& text, bool normalized) const {
        constexpr std::size_t most_per_byte = 64;
        const added_token_finder& finder = normalized ? in_normalized_ : in_raw_;
        std::vector<added_span> spans;
        std::size_t read = 0;
        std::size_t done = 0;
        for (std::size_t i = 0; !finder.empty() && i < text.bytes.size();) {
            const auto [token, match_end] = finder.longest(text, i, read);
            if (read / most_per_byte > text.bytes.size())
                return error{error_code::out_of_range, "added_tokens",
                             "too much of the text begins like long added tokens of tokenizer.json"};
            if (!token) {
                ++i;
                continue;
            }
            std::size_t begin = i;
            std::size_t end = match_end;
            i = match_end;
            if (token->single_word && inside_word(text.bytes, begin, end))
                continue;
            while (token->lstrip && begin > done && is_white_space(code_point_before(text.bytes, begin).value))
                begin -= code_point_before(text.bytes, begin).bytes;
            while (token->rstrip && end < text.bytes.size() && is_white_space(code_point_at(text.bytes, end).value))
                end += code_point_at(text.bytes, end).bytes;
            if (done < begin)
                spans.push_back({std::nullopt, done, begin});
            spans.push_back({token->id, begin, end});
            done = end;
        }
        if (done < text.bytes.size())
            spans.push_back({std::nullopt, done, text.bytes.size()});
        return spans;
    }

private:
    [[nodiscard]] bool inside_word(std::string_view text, std::size_t begin, std::size_t end) const {
        const auto is_word = [&](std::size_t at, code_point c) {
            bool found = false;
            (void)word_->each_match(text.substr(at, c.bytes), [&](std::size_t, std::size_t) { found = true; });
            return found;
        };
        const auto before = begin > 0 ? code_point_before(text, begin) : code_point{};
        return (begin > 0 && is_word(begin - before.bytes, before)) ||
               (end < text.size() && is_word(end, code_point_at(text, end)));
    }

    std::vector<added_token> tokens_;
    std::unordered_map<std::int32_t, std::size_t> by_id_;
    std::unordered_map<std::string, std::int32_t> by_content_;
    added_token_finder in_raw_;
    added_token_finder in_normalized_;
    std::unique_ptr<const regex> word_;
    bool needs_words_ = false;
};
using added_tokens = basic_added_tokens<>;

/// Adds special tokens around the tokens of one text: the `post_processor` of tokenizer.json.
template <class...>
class basic_post_processor {
public:
    basic_post_processor() = default;

    /// Reads a post-processor for single texts; null is none. Token ids in it are less than `size`.
    [[nodiscard]] static basic_post_processor open(const json_reader& at, std::size_t size) {
        basic_post_processor made;
        made.add(at, size);
        return made;
    }

    [[nodiscard]] const std::vector<std::int32_t>& before() const noexcept { return before_; }
    [[nodiscard]] const std::vector<std::int32_t>& after() const noexcept { return after_; }

private:
    void add(const json_reader& at, std::size_t size) {
        if (at.value().is_null())
            return;
        const std::string type = at.text("type");
        if (type == "Sequence")
            at.member("processors").each([&](const json_reader& one) { add(one, size); });
        else if (type == "TemplateProcessing")
            add_template(at, size);
        else if (type == "BertProcessing" || type == "RobertaProcessing") {
            check_count(at, before_.size() + after_.size() + 2);
            wrap({pair_id(at.member("cls"), size)}, {pair_id(at.member("sep"), size)});
        } else if (type != "ByteLevel") // it only changes offsets
            at.refuse(error_code::unsupported, "type", {"the post-processor \"", type, "\" is not known"});
    }

    void add_template(const json_reader& at, std::size_t size) {
        std::vector<std::int32_t> before;
        std::vector<std::int32_t> after;
        bool seen = false;
        at.member("single").each([&](const json_reader& part) {
            if (part.has("Sequence")) {
                if (part.member("Sequence").text("id") != "A" || seen)
                    part.refuse(error_code::unsupported, "Sequence.id", "a single text is the sequence A, once");
                seen = true;
                return;
            }
            const std::string name = part.member("SpecialToken").text("id");
            if (part.failed())
                return;
            at.member("special_tokens").member(name).member("ids").each([&](const json_reader& id) {
                (seen ? after : before).push_back(read_id(id, size));
                check_count(at, before_.size() + after_.size() + before.size() + after.size());
            });
        });
        if (!seen && !at.failed())
            at.refuse(error_code::unsupported, "single", "the text itself, the sequence A, is not in the template");
        wrap(std::move(before), after);
    }

    [[nodiscard]] static std::int32_t pair_id(const json_reader& at, std::size_t size) {
        std::int32_t id = 0;
        std::size_t i = 0;
        at.each([&](const json_reader& part) {
            if (i++ == 1)
                id = read_id(part, size);
        });
        if (i != 2)
            at.refuse(error_code::malformed, "", "is not a token and its id");
        return id;
    }
    [[nodiscard]] static std::int32_t read_id(const json_reader& at, std::size_t size) {
        return static_cast<std::int32_t>(at.number(size == 0 ? 0 : size - 1));
    }

    static void check_count(const json_reader& at, std::size_t tokens) {
        constexpr std::size_t most = 1024;
        if (tokens > most)
            at.refuse(error_code::out_of_range, "", {"adds more than ", std::to_string(most), " tokens to a text"});
    }
    void wrap(std::vector<std::int32_t> before, const std::vector<std::int32_t>& after) {
        before.insert(before.end(), before_.begin(), before_.end());
        before_ = std::move(before);
        after_.insert(after_.end(), after.begin(), after.end());
    }

    std::vector<std::int32_t> before_;
    std::vector<std::int32_t> after_;
};
using post_processor = basic_post_processor<>;

}}} // namespace kvcache::text
