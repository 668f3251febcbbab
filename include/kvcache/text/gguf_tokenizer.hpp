// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/formats/gguf.hpp>
#include <kvcache/formats/gguf_fields.hpp>
#include <kvcache/text/bpe.hpp>
#include <kvcache/text/gguf_splits.hpp>
#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/unicode.hpp>
#include <kvcache/text/vocabulary.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

namespace detail {

// What a GGUF file implies by its kind of tokenizer, as tokenizer.json says it.

/// SentencePiece's visible space.
inline constexpr std::string_view visible_space = "\xe2\x96\x81";

/// Pre-tokenizer of byte-level BPE.
KVCACHE_LAZY [[nodiscard]] inline json_document byte_level_pre_tokenizer(const gguf_split& split) {
    json_document steps = json_document::array();
    for (const std::string_view pattern : split.patterns)
        if (!pattern.empty())
            steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

/// Normalizer of SentencePiece: spaces become visible, and one is added before a text if `prefix`.
KVCACHE_LAZY [[nodiscard]] inline json_document sentencepiece_normalizer(bool prefix) {
    json_document steps = json_document::array();
    if (prefix)
        steps.push_back({{"type", "Prepend"}, {"prepend", visible_space}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", visible_space}});
    return {{"type", "Sequence"}, {"normalizers", steps}};
}

/// Decoder of SentencePiece: the inverse, and bytes from their tokens.
KVCACHE_LAZY [[nodiscard]] inline json_document sentencepiece_decoder(bool prefix) {
    json_document steps = json_document::array();
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", visible_space}}}, {"content", " "}});
    steps.push_back({{"type", "ByteFallback"}});
    steps.push_back({{"type", "Fuse"}});
    if (prefix)
        steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1U}, {"stop", 0U}});
    return {{"type", "Sequence"}, {"decoders", steps}};
}

/// Returns whether the control tokens include the white space after them: those of Phi-3, which only its name tells.
KVCACHE_LAZY [[nodiscard]] inline bool swallows_spaces(const gguf_header& header) {
    const gguf_value* value = header.find("general.name");
    std::string name(value != nullptr ? value->text().value_or(std::string_view()) : std::string_view());
    ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return name.find("phi-3") != name.npos || name.find("phi3") != name.npos;
}

} // namespace detail

/// The merges of a SentencePiece BPE model, which stores scores: two adjacent tokens merge if their text together is a
/// token, and the highest score comes first, the leftmost of equals.
template <class...>
class basic_score_merges {
public:
    /// `scores`: of each token, none of them NaN. `of_text`: whether a token may be made of text; control and byte
    /// tokens are not.
    basic_score_merges(std::span<const double> scores, std::vector<bool> of_text) : of_text_(std::move(of_text)) {
        std::vector<double> order(scores.begin(), scores.end());
        ranges::sort(order, std::greater<>());
        order.erase(std::unique(order.begin(), order.end()), order.end());
        ranks_.reserve(scores.size());
        for (const double score : scores) // equal scores have equal ranks
            ranks_.push_back(static_cast<std::uint32_t>(
                std::lower_bound(order.begin(), order.end(), score, std::greater<>()) - order.begin()));
    }

    /// Calls set(left, right, merge) for each way in which a token is two tokens. Requires: the tokens are UTF-8, one
    /// for each score. Cost: O(bytes of the token) for each of its characters.
    template <class Set>
    void each(const vocabulary& tokens, Set set) const {
        // SentencePiece's own limit is 16 characters; the bound keeps the cost linear in the vocabulary's bytes.
        constexpr std::size_t longest = 512;
        for (std::size_t id = 0; id < ranks_.size(); ++id) {
            const std::string_view text = *tokens.try_token(static_cast<std::int32_t>(id));
            if (!of_text_[id] || text.empty() || text.size() > longest)
                continue;
            for (std::size_t i = code_point_at(text, 0).bytes; i < text.size(); i += code_point_at(text, i).bytes) {
                const auto left = tokens.try_id(text.substr(0, i)), right = tokens.try_id(text.substr(i));
                if (left && right && of_text_[static_cast<std::size_t>(*left)] &&
                    of_text_[static_cast<std::size_t>(*right)])
                    set(*left, *right, merge{ranks_[id], static_cast<std::int32_t>(id)});
            }
        }
    }

    /// Number of merges.
    [[nodiscard]] std::size_t count(const vocabulary& tokens) const {
        std::size_t n = 0;
        each(tokens, [&](std::int32_t, std::int32_t, merge) { ++n; });
        return n;
    }

private:
    std::vector<std::uint32_t> ranks_;
    std::vector<bool> of_text_;
};
using score_merges = basic_score_merges<>;

/// Makes the parts that a tokenizer.json describes from the keys of a GGUF file. Models are gpt2, byte-level BPE with
/// merges, llama, SentencePiece BPE whose merges follow from the scores, and gemma4, SentencePiece BPE with merges.
template <class...>
class basic_gguf_tokenizer {
public:
    std::map<std::string, std::string> special_tokens = {}; ///< By name, "bos_token".
    std::map<std::string, std::string> chat_templates = {};
    bpe model = {};
    json_document rest = {}; ///< As in tokenizer.json: all but the model.
    kvcache::digest digest = {};

    /// `file` is the name in errors, which name the key. Errors: not_found, malformed, out_of_range; unsupported, for
    /// another model or `pre`.
    [[nodiscard]] static result<basic_gguf_tokenizer> open(const gguf_header& header, const std::string& file) {
        reader from{kvcache::detail::gguf_fields(header, file), header};
        basic_gguf_tokenizer made;
        from.read(made);
        if (from.fields.problem())
            return *from.fields.problem();
        made.digest = digest_of(header);
        return made;
    }

private:
    /// Types of tokens, with the numbers of the format.
    enum token_type : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, byte = 6 };
    static constexpr std::uint64_t last_type = byte;

    struct reader {
        kvcache::detail::gguf_fields fields;
        const gguf_header& header;
        std::vector<std::int32_t> types = {};
        std::map<std::string, std::int32_t, std::less<>> named = {}; // "bos" to its id

        void read(basic_gguf_tokenizer& to) {
            const std::string_view kind = fields.text("tokenizer.ggml.model");
            if (fields.problem())
                return;
            if (kind.empty())
                return fields.refuse(error_code::not_found, "tokenizer.ggml.model",
                                     {"the key is missing: the file has no tokenizer"});
            if (kind != "gpt2" && kind != "llama" && kind != "gemma4")
                return fields.refuse(
                    error_code::unsupported, "tokenizer.ggml.model",
                    {"\"", kvcache::detail::shown(kind), "\" is not supported; gpt2, llama and gemma4 are"});
            std::vector<std::string> tokens = read_tokens();
            if (!fields.problem())
                read_names(to.special_tokens, tokens, kind == "llama");
            if (fields.problem())
                return;
            to.rest = {{"version", "1.0"}, {"added_tokens", added_tokens(tokens)}};
            if (kind == "gpt2")
                read_gpt2(to, std::move(tokens));
            else if (kind == "llama")
                read_llama(to, std::move(tokens));
            else
                read_gemma4(to, std::move(tokens));
            read_templates(to.chat_templates);
        }

        [[nodiscard]] std::vector<std::string> read_tokens() {
            std::vector<std::string> tokens;
            const gguf_value* list = strings("tokenizer.ggml.tokens");
            constexpr std::size_t most = 1u << 24;
            if (list == nullptr || list->size() == 0 || list->size() > most) {
                fields.refuse(error_code::malformed, "tokenizer.ggml.tokens",
                              {"it must be an array of 1 to ", std::to_string(most), " tokens"});
                return tokens;
            }
            tokens.reserve(list->size());
            list->each([&](const gguf_value& token) {
                const std::string_view text = *token.text();
                if (first_invalid_utf8(text))
                    fields.refuse(error_code::malformed, "tokenizer.ggml.tokens",
                                  {"token ", std::to_string(tokens.size()), " is not UTF-8"});
                tokens.push_back(text.empty() ? "[EMPTY_" + std::to_string(tokens.size()) + "]" : std::string(text));
            });
            const gguf_value* kinds = fields.array("tokenizer.ggml.token_type", "integers of 32 bits", [](gguf_type t) {
                return t == gguf_type::i32 || t == gguf_type::u32;
            });
            types.reserve(tokens.size());
            if (kinds != nullptr)
                kinds->each([&](const gguf_value& kind) {
                    const auto number = kind.count().value_or(last_type + 1);
                    if (number > last_type)
                        fields.refuse(error_code::malformed, "tokenizer.ggml.token_type",
                                      {"token ", std::to_string(types.size()), " has a type that is none of 0 to 6"});
                    types.push_back(static_cast<std::int32_t>(number));
                });
            else
                types.assign(tokens.size(), normal);
            check_length("tokenizer.ggml.token_type", types.size(), tokens.size());
            return tokens;
        }
        [[nodiscard]] const gguf_value* strings(std::string_view key) {
            return fields.array(key, "strings", [](gguf_type t) { return t == gguf_type::string; });
        }
        void check_length(std::string_view key, std::size_t length, std::size_t tokens) {
            if (length != tokens)
                fields.refuse(error_code::mismatched, key,
                              {"it has ", std::to_string(length), " elements for ", std::to_string(tokens), " tokens"});
        }

        /// The named tokens; SentencePiece has defaults for three of them.
        void read_names(std::map<std::string, std::string>& to, const std::vector<std::string>& tokens,
                        bool sentencepiece) {
            const std::pair<const char*, const char*> names[] = {
                {"bos", "bos_token_id"},       {"eos", "eos_token_id"},     {"unk", "unknown_token_id"},
                {"sep", "seperator_token_id"}, {"pad", "padding_token_id"}, {"cls", "cls_token_id"},
                {"mask", "mask_token_id"}};
            std::int32_t otherwise[] = {1, 2, 0};
            for (std::size_t i = 0; i < std::size(names); ++i) {
                const std::string key = std::string("tokenizer.ggml.") + names[i].second;
                auto id = fields.id(key);
                if (!id && sentencepiece && i < std::size(otherwise) &&
                    static_cast<std::size_t>(otherwise[i]) < tokens.size())
                    id = token_id{otherwise[i]};
                if (!id)
                    continue;
                const auto index = static_cast<std::size_t>(index_of(*id));
                if (index >= tokens.size())
                    return fields.refuse(
                        error_code::out_of_range, key,
                        {"it is ", std::to_string(index), "; there are ", std::to_string(tokens.size()), " tokens"});
                named[names[i].first] = index_of(*id);
                to[std::string(names[i].first) + "_token"] = tokens[index];
            }
        }

        /// Tokens that are matched in the text: control and unknown ones, and those that a user has defined. Phi-3's
        /// swallow the spaces that follow.
        [[nodiscard]] json_document added_tokens(const std::vector<std::string>& tokens) {
            const bool strips = detail::swallows_spaces(header);
            json_document list = json_document::array();
            for (std::size_t id = 0; id < tokens.size(); ++id) {
                if (types[id] != control && types[id] != unknown && types[id] != user_defined)
                    continue;
                const std::string& content = tokens[id];
                const bool keeps = content == "<unk>" || content == "<s>" || content == "<|endoftext|>";
                list.push_back({{"id", id},
                                {"content", content},
                                {"special", types[id] != user_defined},
                                {"normalized", false},
                                {"rstrip", strips && !keeps}});
            }
            return list;
        }

        /// A post-processor that adds BOS and EOS as the flags say.
        [[nodiscard]] json_document post_processor(bool bos_by_default) {
            json_document single = json_document::array(), special = json_document::object();
            const auto add = [&](const char* name, const char* key, bool otherwise) {
                const bool stated = fields.find(key) != nullptr;
                if (!fields.flag(key, otherwise))
                    return;
                const auto id = named.find(name);
                if (id == named.end()) {
                    if (stated)
                        fields.refuse(error_code::mismatched, key, {"it is true, but the file names no such token"});
                    return;
                }
                single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
                special[name] = {{"id", name}, {"ids", json_document::array({static_cast<std::uint32_t>(id->second)})}};
            };
            add("bos", "tokenizer.ggml.add_bos_token", bos_by_default);
            single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
            add("eos", "tokenizer.ggml.add_eos_token", false);
            return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", special}};
        }

        void read_gpt2(basic_gguf_tokenizer& to, std::vector<std::string> tokens) {
            const std::string_view stated = fields.text("tokenizer.ggml.pre");
            const std::string_view pre = stated.empty() ? "default" : stated;
            const auto* split = ranges::find(gguf_splits, pre, &gguf_split::name);
            if (split == std::end(gguf_splits))
                return fields.refuse(
                    error_code::unsupported, "tokenizer.ggml.pre",
                    {"\"", kvcache::detail::shown(pre), "\" is not known; ", list_of_gguf_splits(), " are"});
            to.rest["pre_tokenizer"] = detail::byte_level_pre_tokenizer(*split);
            to.rest["decoder"] = {{"type", "ByteLevel"}};
            to.rest["post_processor"] = post_processor(split->add_bos);
            read_merges(to, std::move(tokens), {.ignore_merges = split->ignore_merges});
        }

        /// Merges over whole texts with visible spaces. A vocabulary of SentencePiece, whatever its scores say.
        void read_gemma4(basic_gguf_tokenizer& to, std::vector<std::string> tokens) {
            const bool prefix = fields.flag("tokenizer.ggml.add_space_prefix", false);
            to.rest["normalizer"] = detail::sentencepiece_normalizer(prefix);
            to.rest["decoder"] = detail::sentencepiece_decoder(prefix);
            to.rest["post_processor"] = post_processor(true);
            read_merges(to, std::move(tokens), sentencepiece_rules());
        }
        [[nodiscard]] bpe_rules sentencepiece_rules() const {
            bpe_rules rules{.byte_fallback = true, .fuse_unknown = true};
            if (const auto id = named.find("unk"); id != named.end())
                rules.unknown = id->second;
            return rules;
        }

        void read_merges(basic_gguf_tokenizer& to, std::vector<std::string> tokens, const bpe_rules& rules) {
            const gguf_value* merges = strings("tokenizer.ggml.merges");
            if (merges == nullptr)
                return fields.refuse(error_code::not_found, "tokenizer.ggml.merges", {"the key is missing"});
            vocabulary words = vocabulary::of(std::move(tokens));
            std::vector<std::pair<std::pair<std::int32_t, std::int32_t>, merge>> ranked;
            ranked.reserve(merges->size());
            merges->each([&](const gguf_value& line) { add_merge(words, *line.text(), ranked); });
            if (fields.problem())
                return;
            to.model = bpe::of(std::move(words), rules, ranked.size(), [&](const vocabulary&, auto set) {
                for (const auto& [pair, one] : ranked)
                    set(pair.first, pair.second, one);
            });
        }

        /// Adds "left right". Its rank is its place.
        template <class Ranked>
        void add_merge(const vocabulary& words, std::string_view line, Ranked& ranked) {
            const auto refuse = [&](std::initializer_list<std::string_view> what) {
                fields.refuse(error_code::malformed, "tokenizer.ggml.merges",
                              {"merge ", std::to_string(ranked.size()), ", \"", kvcache::detail::shown(line), "\", ",
                               kvcache::detail::joined(what)});
            };
            const std::size_t space = line.find(' ', 1);
            if (space == line.npos)
                return refuse({"is not two tokens"});
            const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
            const auto a = words.try_id(left), b = words.try_id(right);
            const auto made = words.try_id(kvcache::detail::joined({left, right}));
            if (!a || !b || !made)
                return refuse({"merges to or from a string that is no token"});
            ranked.push_back({{*a, *b}, {static_cast<std::uint32_t>(ranked.size()), *made}});
        }

        void read_llama(basic_gguf_tokenizer& to, std::vector<std::string> tokens) {
            const bool prefix = fields.flag("tokenizer.ggml.add_space_prefix", true);
            to.rest["normalizer"] = detail::sentencepiece_normalizer(prefix);
            to.rest["decoder"] = detail::sentencepiece_decoder(prefix);
            to.rest["post_processor"] = post_processor(true);
            const std::vector<double> scores = read_scores(tokens.size());
            if (fields.problem())
                return;
            std::vector<bool> of_text;
            for (const std::int32_t type : types)
                of_text.push_back(type != control && type != unknown && type != byte);
            vocabulary words = vocabulary::of(std::move(tokens));
            const score_merges merges(scores, std::move(of_text));
            const std::size_t count = merges.count(words);
            to.model = bpe::of(std::move(words), sentencepiece_rules(), count,
                               [&](const vocabulary& all, auto set) { merges.each(all, set); });
        }

        [[nodiscard]] std::vector<double> read_scores(std::size_t tokens) {
            const gguf_value* list = fields.array("tokenizer.ggml.scores", "numbers", [](gguf_type t) {
                return t == gguf_type::f32 || t == gguf_type::f64;
            });
            std::vector<double> scores;
            if (list != nullptr)
                list->each([&](const gguf_value& score) { scores.push_back(*score.number()); });
            check_length("tokenizer.ggml.scores", scores.size(), tokens);
            if (ranges::any_of(scores, [](double score) { return std::isnan(score); }))
                fields.refuse(error_code::malformed, "tokenizer.ggml.scores", {"a score is NaN"});
            return scores;
        }

        void read_templates(std::map<std::string, std::string>& to) {
            constexpr std::string_view prefix = "tokenizer.chat_template";
            for (const auto& [key, value] : header.metadata()) {
                if (!key.starts_with(prefix) || (key.size() > prefix.size() && key[prefix.size()] != '.'))
                    continue;
                const std::string_view name = key.size() > prefix.size() ? key.substr(prefix.size() + 1) : "default";
                to[std::string(name)] = std::string(fields.text(key));
            }
        }
    };

    /// Of the keys that decide what tokens a text has.
    [[nodiscard]] static kvcache::digest digest_of(const gguf_header& header) {
        digest_builder builder;
        builder.text("kvcache gguf tokenizer 1").number(detail::swallows_spaces(header) ? 1 : 0);
        for (const auto& [key, value] : header.metadata())
            if (key.starts_with("tokenizer.ggml."))
                builder.text(key).number(value.bytes().size()).bytes(value.bytes());
        return builder.finish();
    }
};
using gguf_tokenizer = basic_gguf_tokenizer<>;

}}} // namespace kvcache::text
