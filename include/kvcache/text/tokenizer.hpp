// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/stop_token.hpp>
#include <kvcache/formats/gguf.hpp>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace text {
struct added_token;
}

/// The files next to tokenizer.json: the names of the special tokens, and the chat templates.
class tokenizer_config {
public:
    tokenizer_config() = default;
    /// The special tokens and the chat templates, each by name.
    tokenizer_config(std::map<std::string, std::string> special, std::map<std::string, std::string> templates)
        : special_(std::move(special)), templates_(std::move(templates)) {}

    /// Reads tokenizer_config.json, special_tokens_map.json and chat_template.jinja, each if present. Errors: a file
    /// is malformed; the error names the field.
    KVCACHE_ONCE [[nodiscard]] static result<tokenizer_config> open(const std::filesystem::path& directory);

    /// Returns the string of "bos_token", "eos_token", "unk_token", "pad_token" and so on, or null.
    [[nodiscard]] const std::string* try_special(const std::string& name) const {
        const auto found = special_.find(name);
        return found == special_.end() ? nullptr : &found->second;
    }
    /// All special tokens, by name.
    [[nodiscard]] const std::map<std::string, std::string>& special_tokens() const noexcept { return special_; }

    /// Returns the Jinja text of a chat template, or null. The usual name is "default".
    [[nodiscard]] const std::string* try_chat_template(const std::string& name) const {
        const auto found = templates_.find(name);
        return found == templates_.end() ? nullptr : &found->second;
    }

    /// Returns whether an added token controls the model, so that user text must not become it.
    KVCACHE_ONCE [[nodiscard]] bool is_control(const text::added_token& token) const;

private:
    struct reader;

    std::map<std::string, std::string> special_;
    std::map<std::string, std::string> templates_;
};

namespace text {
template <class...>
class basic_decoder;
using decoder = basic_decoder<>;
struct tagged_text;
} // namespace text

/// A part of a rendered text, written either by the template or by the user.
struct text_segment {
    std::string text = {};
    bool is_control = false; ///< The text may become control tokens.
    bool after_cut = false;  ///< It is encoded as a text of its own: no token spans its beginning.

    friend bool operator==(const text_segment&, const text_segment&) = default;
};

/// Options of encoding.
struct encode_options {
    bool add_special_tokens = true; ///< Add the post-processor's tokens, such as `<s>`.
    bool parse_special = true;      ///< Parse control tokens. Set it to false for user text.
    stop_token stop = {};           ///< Ends the encoding early, with error_code::cancelled.
};

/// Options of decoding.
struct decode_options {
    bool skip_special = false;    ///< Omit special tokens.
    bool clean_up_spaces = false; ///< Remove the space before . , ? ! and English contractions, as some tools do.
};

/// Converts text to tokens and back, from a tokenizer.json: byte-level and SentencePiece-style BPE, compatible with
/// the Hugging Face library `tokenizers`; or from the keys of a GGUF file, compatible with llama.cpp. A cheap copy of
/// one immutable state; any number of threads may use it.
///
/// A control token is an added token that is special, that is named by tokenizer_config.json or by the chat template
/// in the directory, or that is written like markup (`<|...|>`, `<s>`, `[INST]`). Text that is not parsed for control
/// tokens never yields one; other added tokens (runs of spaces, words) are found in any text. The `truncation` and
/// `padding` of the file are not applied.
class tokenizer {
public:
    /// Reads a directory: tokenizer.json, and tokenizer_config.json and chat_template.jinja if present. Or a GGUF file
    /// (the first part if it is split). Errors: a file is missing, malformed, or requires an unknown feature; the error
    /// names the field or key. Cost: about half a second for 150,000 tokens.
    KVCACHE_ONCE [[nodiscard]] static result<tokenizer> open(const std::filesystem::path& path);

    /// Reads the text of a tokenizer.json.
    KVCACHE_ONCE [[nodiscard]] static result<tokenizer> parse(std::string_view tokenizer_json, tokenizer_config config);

    /// Reads the keys of a GGUF file, whose name in errors is `file`.
    KVCACHE_ONCE [[nodiscard]] static result<tokenizer> parse(const gguf_header& header, const std::string& file);

    /// Returns the tokens of `text`. Errors: text is not UTF-8; a pattern exceeds its limits. Cost: O(bytes log
    /// bytes) in the worst case; linear for prose.
    KVCACHE_ONCE [[nodiscard]] result<std::vector<token_id>> encode(std::string_view text,
                                                                    const encode_options& options) const;
    /// Returns the tokens of a rendered template. Text of the template may become control tokens; user text never
    /// does. The segments contain the tokens that the template writes (`<s>`), so pass add_special_tokens = false; that
    /// is required where a segment is after a cut.
    /// `stop` as in encode_options.
    KVCACHE_ONCE [[nodiscard]] result<std::vector<token_id>>
    encode(std::span<const text_segment> segments, bool add_special_tokens, const stop_token& stop = {}) const;

    /// Returns the text of `tokens`. Invalid UTF-8 becomes U+FFFD; an id without a token is omitted.
    KVCACHE_ONCE [[nodiscard]] std::string decode(std::span<const token_id> tokens,
                                                  const decode_options& options) const;

    /// Returns one more than the greatest id, added tokens included.
    KVCACHE_ONCE [[nodiscard]] std::size_t vocabulary_size() const noexcept;
    /// Returns the string of a token ("\u0120the", "<0x0A>"), or null. It lives as long as the tokenizer.
    KVCACHE_ONCE [[nodiscard]] const std::string* try_piece(token_id token) const;
    /// Returns the token whose string is `piece`.
    KVCACHE_ONCE [[nodiscard]] std::optional<token_id> try_token(std::string_view piece) const;
    /// Returns whether skip_special omits the token.
    KVCACHE_ONCE [[nodiscard]] bool is_special(token_id token) const;
    /// Returns whether the token is parsed only from text that may contain control tokens.
    KVCACHE_ONCE [[nodiscard]] bool is_control(token_id token) const;
    /// The tokens named bos_token and eos_token in tokenizer_config.json or by the keys of a GGUF file.
    [[nodiscard]] std::optional<token_id> bos() const { return named("bos_token"); }
    [[nodiscard]] std::optional<token_id> eos() const { return named("eos_token"); }

    KVCACHE_ONCE [[nodiscard]] const tokenizer_config& config() const noexcept;
    /// Returns the XXH3-128 of the bytes of tokenizer.json, or of a GGUF file's keys `tokenizer.ggml.*`.
    KVCACHE_ONCE [[nodiscard]] const kvcache::digest& digest() const noexcept;

private:
    friend class stream_decoder;

    struct state;

    KVCACHE_ONCE [[nodiscard]] const text::decoder& decoder() const noexcept;

    explicit tokenizer(std::shared_ptr<const state> s) : state_(std::move(s)) {}

    KVCACHE_ONCE [[nodiscard]] std::optional<token_id> named(const char* name) const;

    KVCACHE_ONCE [[nodiscard]] result<std::vector<token_id>>
    encode(const text::tagged_text& input, bool add_special_tokens, const stop_token& stop) const;

    std::shared_ptr<const state> state_;
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/text/impl/tokenizer.hpp>
#endif
