// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Ends a text before the first of some strings, and holds back only what could still become one of them. Which string
/// ends it, and where, does not depend on how the text is cut into pieces: the one that is complete first, of those the
/// longest. Whole code points stay whole.
class stop_strings {
public:
    /// Ends nothing.
    stop_strings() = default;
    /// Empty strings are left out.
    explicit stop_strings(const std::vector<std::string>& strings) {
        for (const std::string& each : strings)
            if (!each.empty())
                patterns_.push_back(make(each));
    }

    /// Takes the next piece. Returns: the text that is now sure, nothing once the text has ended.
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

    /// The text is over. Returns: what was held back.
    [[nodiscard]] std::string flush() {
        for (pattern& each : patterns_)
            each.matched = 0;
        return std::exchange(held_, std::string());
    }

    /// Whether one of the strings has ended the text.
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }
    /// Bytes held back.
    [[nodiscard]] std::size_t held() const noexcept { return held_.size(); }

private:
    // Knuth, Morris & Pratt 1977: the longest suffix of the text that begins the string.
    struct pattern {
        std::string text;
        std::vector<std::size_t> border; // of the first i bytes
        std::size_t matched = 0;

        // Whether the string is complete.
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

} // namespace kvcache
