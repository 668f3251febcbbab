// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/text/decoder.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Decodes tokens one at a time. The concatenated results of push and flush equal the result of tokenizer::decode for
/// the same tokens. No part ends inside a code point, and no U+FFFD replaces bytes that a later token completes.
/// SentencePiece-style tokenizers drop the space before the first word of a text; to continue after a prompt, push
/// the prompt's tokens first and discard their text.
class stream_decoder {
public:
    KVCACHE_LAZY stream_decoder(tokenizer words, const decode_options& options)
        : words_(std::move(words)), options_(options), run_(words_.decoder()) {}

    /// Decodes the next token. Returns: the text that is now complete, often empty. Cost: O(bytes).
    KVCACHE_LAZY [[nodiscard]] std::string push(token_id token) {
        std::string out;
        if (const std::string* piece = words_.try_piece(token);
            piece && !(options_.skip_special && words_.is_special(token)))
            run_.push(*piece, out);
        return out;
    }

    /// Ends the text. Returns: the text held back. A new text may follow.
    KVCACHE_LAZY [[nodiscard]] std::string flush() {
        std::string out;
        run_.finish(out);
        return out;
    }

private:
    tokenizer words_;
    decode_options options_;
    text::decoder::run run_;
};

}} // namespace kvcache
