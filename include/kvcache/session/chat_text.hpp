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

namespace kvcache::inline KVCACHE_ABI {

/// The text of an answer as its tokens come: special tokens left out, whole code points, ended by the first stop
/// string, held back only while its end could still be one.
class chat_text {
public:
    /// Behind `prompt`: its last token, if any, is what the answer's first word follows.
    KVCACHE_LAZY chat_text(const tokenizer& words, std::span<const token_id> prompt,
                           const std::vector<std::string>& stops)
        : decoder_(words, {.skip_special = true}), stops_(stops) {
        if (!prompt.empty())
            (void)decoder_.push(prompt.back());
    }

    /// Returns: the text that is now sure, often empty.
    KVCACHE_LAZY [[nodiscard]] std::string push(token_id token) { return keep(stops_.push(decoder_.push(token))); }

    /// The answer is over. Returns: what was held back.
    KVCACHE_LAZY [[nodiscard]] std::string flush() {
        std::string rest = stops_.push(decoder_.flush());
        return keep(rest + stops_.flush());
    }

    /// Whether a stop string has ended it.
    [[nodiscard]] bool stopped() const noexcept { return stops_.stopped(); }
    /// All of it, so far as it is sure.
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

} // namespace kvcache
