// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/session/stop_strings.hpp>
#include <kvcache/text/stream_decoder.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Decodes the tokens of an answer into text. Special tokens are left out, code points are whole, and the text ends
/// at the first stop string. Only bytes that may still become a stop string are held back.
class chat_text {
public:
    /// The text follows `prompt`: its last token, if any, is the left context of the first decoded token.
    KVCACHE_LAZY chat_text(const tokenizer& words, std::span<const token_id> prompt,
                           const std::vector<std::string>& stops)
        : decoder_(words, {.skip_special = true}), stops_(stops) {
        if (!prompt.empty())
            (void)decoder_.push(prompt.back());
    }

    /// Returns: the text that can no longer be part of a stop string, often empty.
    KVCACHE_LAZY [[nodiscard]] std::string push(token_id token) { return keep(stops_.push(decoder_.push(token))); }

    /// Ends the answer. Returns: the text held back.
    KVCACHE_LAZY [[nodiscard]] std::string flush() {
        std::string rest = stops_.push(decoder_.flush());
        return keep(rest + stops_.flush());
    }

    /// Returns whether a stop string ended the text.
    [[nodiscard]] bool stopped() const noexcept { return stops_.stopped(); }
    /// Returns the text so far, without the bytes held back.
    [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
    [[nodiscard]] std::string keep(std::string piece) {
        text_ += piece;
        return piece;
    }

    stream_decoder decoder_;
    stop_strings stops_;
    std::string text_;
};

}} // namespace kvcache
