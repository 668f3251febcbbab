// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/sha256_digest.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A whole page of a prompt, as a record names it.
struct prompt_page {
    std::size_t index = 0; ///< Index among the pages of the prompt.
    std::span<const token_id> tokens = {};
    sha256_digest before = {}; ///< Name of the prefix before the page.
    sha256_digest name = {};   ///< Name of the prefix that the page ends.

    /// Position of the first token.
    [[nodiscard]] std::uint64_t first() const noexcept { return index * tokens.size(); }
};

/// Consecutive whole pages of a prompt.
struct page_run {
    std::size_t first = 0;                     ///< Index of the first page in the prompt.
    std::size_t page_tokens = 0;               ///< Tokens of a page.
    std::span<const token_id> tokens = {};     ///< Tokens of all pages of the run.
    std::span<const sha256_digest> chain = {}; ///< Name of the prefix before each page of the prompt, and of the whole.

    [[nodiscard]] std::size_t pages() const noexcept { return tokens.size() / page_tokens; }
    /// Page `i` of the run.
    [[nodiscard]] prompt_page page(std::size_t i) const noexcept {
        return {first + i, tokens.subspan(i * page_tokens, page_tokens), chain[first + i], chain[first + i + 1]};
    }
    /// Names of `count` pages from page `i` of the run on.
    [[nodiscard]] std::span<const sha256_digest> names(std::size_t i, std::size_t count) const noexcept {
        return chain.subspan(first + i + 1, count);
    }
};

}} // namespace kvcache
