// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/platform/stop_token.hpp>
#include <kvcache/formats/gguf.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/text/added_tokens.hpp>
#include <kvcache/text/bpe.hpp>
#include <kvcache/text/decoder.hpp>
#include <kvcache/text/gguf_tokenizer.hpp>
#include <kvcache/text/normalizer.hpp>
#include <kvcache/text/pre_tokenizer.hpp>
#include <kvcache/text/tokenizer.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

KVCACHE_LAZY [[nodiscard]] inline bool is_sign(char c) noexcept {
    return text::is_punctuation(static_cast<unsigned char>(c) < 0x80 ? static_cast<char32_t>(c) : U'a');
}
KVCACHE_LAZY [[nodiscard]] inline bool looks_like_markup(std::string_view content) {
    if (content == "<s>" || content == "</s>")
        return true;
    if (content.size() > 4 && content.starts_with("<|") && content.ends_with("|>"))
        return true;
    return content.size() > 2 && content.starts_with('[') && content.ends_with(']') &&
           content.substr(1, content.size() - 2).find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_/") ==
               std::string_view::npos;
}

} // namespace detail

/// Reads the parts of tokenizer_config.json.
struct tokenizer_config::reader {
    tokenizer_config& to;

    KVCACHE_LAZY [[nodiscard]] result<void> read(const json& document, const std::string& file) {
        if (!document.is_object())
            return error{error_code::mismatched, file, "is not an object"};
        for (const char* name :
             {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
            const auto found = document.find(name);
            if (found == document.end() || found->is_null() || to.special_.contains(name))
                continue;
            const json* content = &*found;
            if (content->is_object() && content->contains("content"))
                content = &(*content)["content"];
            if (!content->is_string())
                return error{error_code::mismatched, std::string(name), file + " gives neither a string nor a token"};
            to.special_[name] = content->get<std::string>();
        }
        const auto chat = document.find("chat_template");
        return chat == document.end() || chat->is_null() ? result<void>{} : read_templates(*chat);
    }

    /// Reads one template, or a list of {"name", "template"}.
    KVCACHE_LAZY [[nodiscard]] result<void> read_templates(const json& chat) {
        if (chat.is_string()) {
            to.templates_["default"] = chat.get<std::string>();
            return {};
        }
        const error wrong{error_code::mismatched, "chat_template",
                          "is neither a string nor a list of objects with name and template"};
        if (!chat.is_array())
            return wrong;
        for (const json& one : chat) {
            if (!one.is_object() || !one.contains("name") || !one.contains("template") || !one["name"].is_string() ||
                !one["template"].is_string())
                return wrong;
            to.templates_[one["name"].get<std::string>()] = one["template"].get<std::string>();
        }
        return {};
    }
};

KVCACHE_BODY result<tokenizer_config> tokenizer_config::open(const std::filesystem::path& directory) {
    tokenizer_config made;
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
        std::error_code failed;
        if (!std::filesystem::exists(directory / name, failed))
            continue;
        const auto document = read_json(directory / name);
        if (!document)
            return document.error();
        if (auto read = reader{made}.read(*document, name); !read)
            return read.error();
    }
    std::error_code failed;
    if (const auto file = directory / "chat_template.jinja"; std::filesystem::exists(file, failed)) {
        constexpr std::size_t largest = 1u << 20;
        auto source = read_file(file, largest);
        if (!source)
            return source.error();
        made.templates_["default"] = std::move(*source);
    }
    return made;
}

KVCACHE_BODY bool tokenizer_config::is_control(const text::added_token& token) const {
    const std::string_view content = token.content;
    const auto named = [&](const auto& entry) { return entry.second == content; };
    if (token.special || ranges::any_of(special_, named) || detail::looks_like_markup(content))
        return true;
    const auto writes = [&](const auto& entry) { return entry.second.find(content) != std::string::npos; };
    return content.size() > 2 && detail::is_sign(content.front()) && detail::is_sign(content.back()) &&
           ranges::any_of(templates_, writes);
}

namespace detail {

// Implements clean_up_tokenization_spaces of the Hugging Face libraries.
KVCACHE_LAZY [[nodiscard]] inline std::string without_loose_spaces(std::string text) {
    constexpr std::pair<std::string_view, std::string_view> loose[] = {
        {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : loose) {
        std::string made;
        std::size_t done = 0;
        for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
            made.append(text, done, at - done).append(to);
            done = at + from.size();
        }
        text = made.append(text, done);
    }
    return text;
}

} // namespace detail

struct tokenizer::state {
    tokenizer_config config = {};
    text::normalizer normalize = {};
    text::pre_tokenizer split = {};
    text::bpe model = {};
    text::post_processor wrap = {};
    text::decoder decode = {};
    text::added_tokens added = {};
    std::vector<bool> control = {}; ///< Indexed by token id.
    std::size_t size = 0;
    kvcache::digest digest = {};

    KVCACHE_LAZY void read(const text::json_reader& at) {
        if (at.has("version") && at.text("version") != "1.0")
            at.refuse(error_code::unsupported, "version", {"is \"", at.text("version"), "\"; 1.0 is known"});
        model = text::bpe::open(at.member("model"));
        if (!at.failed())
            read_rest(at);
    }

    /// Reads all but the model, which is there.
    KVCACHE_LAZY void read_rest(const text::json_reader& at) {
        static const text::json_document nothing;
        const auto part = [&](const char* name) {
            return at.has(name) ? at.member(name) : text::json_reader(nothing, name, at.problem());
        };
        size = model.tokens().size();
        if (at.has("added_tokens"))
            added.read(at.member("added_tokens"), model.tokens());
        for (const auto& t : added.all())
            size = std::max(size, static_cast<std::size_t>(t.id) + 1);
        normalize = text::normalizer::open(part("normalizer"));
        split = text::pre_tokenizer::open(part("pre_tokenizer"));
        wrap = text::post_processor::open(part("post_processor"), size);
        decode = text::decoder::open(part("decoder"));
    }

    KVCACHE_LAZY [[nodiscard]] result<void> index() {
        auto done = added.index(normalize, [&](const text::added_token& t) { return config.is_control(t); });
        control.assign(size, false);
        for (const auto& t : added.all())
            control[static_cast<std::size_t>(t.id)] = t.control;
        return done;
    }
};

KVCACHE_BODY result<tokenizer> tokenizer::open(const std::filesystem::path& path) {
    if (detail::is_gguf_path(path)) {
        const auto file = mapped_file::open(path);
        if (!file)
            return file.error();
        const auto header = gguf_header::parse(file->bytes(), file->name());
        return header ? parse(*header, file->name()) : result<tokenizer>(header.error());
    }
    constexpr std::size_t largest = 64u << 20; // the largest that is published has 33 MiB
    const auto file = read_file(path / "tokenizer.json", largest);
    if (!file)
        return file.error();
    auto config = tokenizer_config::open(path);
    if (!config)
        return config.error();
    return parse(*file, std::move(*config));
}

KVCACHE_BODY result<tokenizer> tokenizer::parse(std::string_view tokenizer_json, tokenizer_config config) {
    const auto document = parse_json_as<text::json_document>(tokenizer_json, "tokenizer.json");
    if (!document)
        return document.error();
    auto made = std::make_shared<state>();
    made->config = std::move(config);
    std::optional<error> problem;
    made->read(text::json_reader(*document, "", problem));
    if (problem)
        return *problem;
    if (auto indexed = made->index(); !indexed)
        return indexed.error();
    made->digest = digest_builder().bytes(text_bytes(tokenizer_json)).finish();
    return tokenizer(std::move(made));
}

KVCACHE_BODY result<tokenizer> tokenizer::parse(const gguf_header& header, const std::string& file) {
    auto keys = text::gguf_tokenizer::open(header, file);
    if (!keys)
        return keys.error();
    auto made = std::make_shared<state>();
    made->config = tokenizer_config(std::move(keys->special_tokens), std::move(keys->chat_templates));
    made->model = std::move(keys->model);
    made->digest = keys->digest;
    std::optional<error> problem;
    made->read_rest(text::json_reader(keys->rest, "", problem));
    if (problem) // of two tokens with one string
        return error{problem->code, "tokenizer.ggml.tokens",
                     detail::joined({file, ": tokenizer.ggml.tokens: ", problem->message})};
    if (auto indexed = made->index(); !indexed)
        return indexed.error();
    return tokenizer(std::move(made));
}

KVCACHE_BODY result<std::vector<token_id>> tokenizer::encode(std::string_view text,
                                                             const encode_options& options) const {
    text::tagged_text marked;
    marked.append(text, !options.parse_special);
    return encode(marked, options.add_special_tokens, options.stop);
}

KVCACHE_BODY result<std::vector<token_id>> tokenizer::encode(std::span<const text_segment> segments,
                                                             bool add_special_tokens, const stop_token& stop) const {
    std::vector<token_id> all;
    text::tagged_text marked;
    for (const text_segment& s : segments) {
        if (s.after_cut && !marked.bytes.empty()) {
            expects(!add_special_tokens, "a text that is cut begins and ends with the tokens that its segments say");
            auto part = encode(std::exchange(marked, {}), false, stop);
            if (!part)
                return part;
            all.insert(all.end(), part->begin(), part->end());
        }
        marked.append(s.text, !s.is_control);
    }
    auto last = encode(marked, add_special_tokens, stop);
    if (last && !all.empty())
        last->insert(last->begin(), all.begin(), all.end());
    return last;
}

KVCACHE_BODY std::string tokenizer::decode(std::span<const token_id> tokens, const decode_options& options) const {
    std::string out;
    text::decoder::run run(state_->decode);
    for (const token_id t : tokens)
        if (const std::string* piece = try_piece(t); piece && !(options.skip_special && is_special(t)))
            run.push(*piece, out);
    run.finish(out);
    return options.clean_up_spaces ? detail::without_loose_spaces(std::move(out)) : out;
}

KVCACHE_BODY const std::string* tokenizer::try_piece(token_id token) const {
    if (const auto* added = state_->added.try_find(index_of(token)))
        return &added->content;
    return state_->model.tokens().try_token(index_of(token));
}

KVCACHE_BODY std::optional<token_id> tokenizer::try_token(std::string_view piece) const {
    if (const auto* added = state_->added.try_find(piece))
        return token_id{added->id};
    const auto id = state_->model.tokens().try_id(piece);
    return id ? std::optional(token_id{*id}) : std::nullopt;
}

KVCACHE_BODY bool tokenizer::is_special(token_id token) const {
    const auto* added = state_->added.try_find(index_of(token));
    return added && added->special;
}

KVCACHE_BODY bool tokenizer::is_control(token_id token) const {
    const auto* added = state_->added.try_find(index_of(token));
    return added && added->control;
}

KVCACHE_BODY std::optional<token_id> tokenizer::named(const char* name) const {
    const std::string* piece = state_->config.try_special(name);
    return piece ? try_token(*piece) : std::nullopt;
}

KVCACHE_BODY result<std::vector<token_id>> tokenizer::encode(const text::tagged_text& input, bool add_special_tokens,
                                                             const stop_token& stop) const {
    const auto given_up = [] { return error{error_code::cancelled, "text", "the caller cancelled the encoding"}; };
    constexpr std::size_t longest = std::size_t{1} << 30;
    if (input.bytes.size() > longest)
        return error{error_code::out_of_range, "text", "more than a gibibyte is not encoded at once"};
    if (const auto bad = text::first_invalid_utf8(input.bytes))
        return error{error_code::malformed, "text", detail::joined({"byte ", std::to_string(*bad), " is not UTF-8"})};
    std::vector<std::int32_t> ids;
    if (add_special_tokens)
        ids = state_->wrap.before();
    text::bpe::run run(state_->model, input.marked() ? &state_->control : nullptr);
    const auto raws = state_->added.split(input, false);
    if (!raws)
        return raws.error();
    for (const auto& raw : *raws) {
        if (raw.token) {
            ids.push_back(*raw.token);
            continue;
        }
        if (stop.stop_requested())
            return given_up();
        text::tagged_text section = input.sub(raw.begin, raw.end);
        if (auto done = state_->normalize.apply(section); !done)
            return done.error();
        const auto spans = state_->added.split(section, true);
        if (!spans)
            return spans.error();
        for (const auto& span : *spans) {
            if (span.token) {
                ids.push_back(*span.token);
                continue;
            }
            text::pieces cut;
            cut.text = section.bytes.substr(span.begin, span.end - span.begin);
            cut.parts = {{0, cut.text.size()}};
            cut.opens_input = raw.begin == 0 && span.begin == 0;
            if (auto done = state_->split.apply(cut); !done)
                return done.error();
            if (cut.text.size() > state_->model.longest_text())
                return error{error_code::out_of_range, "text",
                             detail::joined({"more than ", std::to_string(state_->model.longest_text()),
                                             " bytes are not encoded at once"})};
            std::size_t bytes = 0; // since `stop` was looked at
            for (const text::piece& p : cut.parts) {
                if (bytes > 65536 && stop.stop_requested())
                    return given_up();
                bytes = bytes > 65536 ? 0 : bytes + p.end - p.begin;
                run.encode(cut.view(p), ids);
            }
        }
    }
    if (add_special_tokens)
        ids.insert(ids.end(), state_->wrap.after().begin(), state_->wrap.after().end());
    std::vector<token_id> tokens(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
        tokens[i] = token_id{ids[i]};
    return tokens;
}

KVCACHE_BODY std::size_t tokenizer::vocabulary_size() const noexcept {
    return state_->size;
}

KVCACHE_BODY const tokenizer_config& tokenizer::config() const noexcept {
    return state_->config;
}

KVCACHE_BODY const kvcache::digest& tokenizer::digest() const noexcept {
    return state_->digest;
}

KVCACHE_BODY const text::decoder& tokenizer::decoder() const noexcept {
    return state_->decode;
}

}} // namespace kvcache
