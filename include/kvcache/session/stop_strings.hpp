// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Cuts a text before the first occurrence of a stop string. Only bytes that may still become part of a stop string
/// are held back. The match does not depend on how the text is split into pieces: the first string to be complete
/// wins, and the longest of several that complete together. Code points are never split.
class stop_strings {
public:
    /// No stop strings: the text is never cut.
    stop_strings() = default;
    /// Ignores empty strings.
    explicit stop_strings(const std::vector<std::string>& strings) {
        for (const std::string& each : strings)
            if (!each.empty())
                patterns_.push_back(make(each));
    }

    /// Appends the next piece. Returns: the text that can no longer be part of a stop string; nothing after a match.
    /// Cost: O(bytes x strings).
    [[nodiscard]] std::string push(std::string_view piece) {
        for (std::size_t i = 0; i < piece.size() && !stopped_; ++i) {
            held_ += piece[i];
            std::size_t longest = 0;
            for (pattern& each : patterns_)
                if (each.take(piece[i])) {
                    longest = std::max(longest, each.text.size());
                    stopped_ = true;
                }
            held_.resize(held_.size() - longest);
        }
        std::size_t keep = 0;
        for (const pattern& each : patterns_)
            keep = std::max(keep, stopped_ ? 0 : each.matched);
        std::string sure = held_.substr(0, held_.size() - keep);
        held_.erase(0, sure.size());
        return sure;
    }

    /// Ends the text. Returns: the bytes held back.
    [[nodiscard]] std::string flush() {
        for (pattern& each : patterns_)
            each.matched = 0;
        return std::exchange(held_, std::string());
    }

    /// Returns whether a stop string was matched.
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }
    /// Number of bytes held back.
    [[nodiscard]] std::size_t held() const noexcept { return held_.size(); }

private:
    // Matcher of Knuth, Morris & Pratt 1977: the longest suffix of the text that is a prefix of the string.
    struct pattern {
        std::string text;
        std::vector<std::size_t> border; // length of the longest border of the first i bytes
        std::size_t matched = 0;

        // Returns whether the string is complete.
        bool take(char next) {
            while (matched > 0 && text[matched] != next)
                matched = border[matched];
            matched += text[matched] == next;
            return matched == text.size();
        }
    };

    [[nodiscard]] static pattern make(const std::string& text) {
        pattern made{text, std::vector<std::size_t>(text.size() + 1, 0)};
        for (std::size_t i = 1, k = 0; i < text.size(); ++i) {
            while (k > 0 && text[k] != text[i])
                k = made.border[k];
            k += text[k] == text[i];
            made.border[i + 1] = k;
        }
        return made;
    }

    std::vector<pattern> patterns_;
    std::string held_;
    bool stopped_ = false;
};

}} // namespace kvcache
