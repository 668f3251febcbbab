// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/text/tokenizer_config.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

namespace text {
template <class...>
class basic_decoder;
using decoder = basic_decoder<>;
struct marked_text;
} // namespace text

/// A part of a rendered text: what a template wrote, or what a user did.
struct text_segment {
    std::string text = {};
    bool is_control = false; ///< Whether it may be read as control tokens.

    friend bool operator==(const text_segment&, const text_segment&) = default;
};

/// How a text is encoded.
struct encode_options {
    bool add_special_tokens = true; ///< Put the tokens of the post-processor around it, as <s>.
    bool parse_special = true;      ///< Read control tokens from it. False for text of users.
};

/// How tokens are decoded.
struct decode_options {
    bool skip_special = false;    ///< Leave special tokens out.
    bool clean_up_spaces = false; ///< Take the space before . , ? ! and English contractions away, as some tools do.
};

/// Text to tokens and back, from a tokenizer.json: byte-level and SentencePiece-style BPE, as the Hugging Face library
/// `tokenizers` does it. A cheap copy of one immutable state; any number of threads may use it.
///
/// A control token is an added token that is special, that tokenizer_config.json or the chat template of the directory
/// names, or that is written like markup (<|...|>, <s>, [INST]). Text that is not to be parsed never yields one; other
/// added tokens (runs of spaces, words) are found in it as in any text.
/// The `truncation` and `padding` of the file are not applied.
class tokenizer {
public:
    /// Reads tokenizer.json, and tokenizer_config.json and chat_template.jinja where they are, from a directory.
    /// Returns: an error that names the field where a file is missing, broken, or asks for something unknown.
    /// Cost: about half a second for 150,000 tokens.
    KVCACHE_ONCE [[nodiscard]] static result<tokenizer> open(const std::filesystem::path& directory);

    /// Reads the text of a tokenizer.json.
    KVCACHE_ONCE [[nodiscard]] static result<tokenizer> parse(std::string_view tokenizer_json, tokenizer_config config);

    /// The tokens of `text`. Returns: an error where it is not UTF-8, or a pattern exceeds its limits.
    /// Cost: O(bytes log bytes) at worst; linear for prose.
    KVCACHE_ONCE [[nodiscard]] result<std::vector<token_id>> encode(std::string_view text,
                                                                    const encode_options& options) const;
    /// The tokens of a text as a template made it: its own parts may become control tokens, a user's never.
    /// What a template writes (<s>) is in the segments; pass add_special_tokens = false with a rendered chat.
    KVCACHE_ONCE [[nodiscard]] result<std::vector<token_id>> encode(std::span<const text_segment> segments,
                                                                    bool add_special_tokens) const;

    /// The text of `tokens`. Bytes that are no text become U+FFFD; an identifier without a token is left out.
    KVCACHE_ONCE [[nodiscard]] std::string decode(std::span<const token_id> tokens,
                                                  const decode_options& options) const;

    /// One more than the greatest identifier, added tokens included.
    KVCACHE_ONCE [[nodiscard]] std::size_t vocabulary_size() const noexcept;
    /// The token's own string ("\u0120the", "<0x0A>"), or null where there is none. Lives as long as the tokenizer.
    KVCACHE_ONCE [[nodiscard]] const std::string* try_piece(token_id token) const;
    /// The token whose own string is `piece`.
    KVCACHE_ONCE [[nodiscard]] std::optional<token_id> try_token(std::string_view piece) const;
    /// Whether skip_special leaves the token out.
    KVCACHE_ONCE [[nodiscard]] bool is_special(token_id token) const;
    /// Whether the token is read only from text that may hold control tokens.
    KVCACHE_ONCE [[nodiscard]] bool is_control(token_id token) const;
    /// The tokens that tokenizer_config.json calls bos_token and eos_token.
    [[nodiscard]] std::optional<token_id> bos() const { return named("bos_token"); }
    [[nodiscard]] std::optional<token_id> eos() const { return named("eos_token"); }

    KVCACHE_ONCE [[nodiscard]] const tokenizer_config& config() const noexcept;
    /// XXH3-128 of the bytes of tokenizer.json.
    KVCACHE_ONCE [[nodiscard]] const kvcache::digest& digest() const noexcept;

private:
    friend class stream_decoder;

    struct state;

    KVCACHE_ONCE [[nodiscard]] const text::decoder& decoder() const noexcept;

    explicit tokenizer(std::shared_ptr<const state> s) : state_(std::move(s)) {}

    KVCACHE_ONCE [[nodiscard]] std::optional<token_id> named(const char* name) const;

    KVCACHE_ONCE [[nodiscard]] result<std::vector<token_id>> encode(const text::marked_text& input,
                                                                    bool add_special_tokens) const;

    std::shared_ptr<const state> state_;
};

} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/text/impl/tokenizer.hpp>
#endif
