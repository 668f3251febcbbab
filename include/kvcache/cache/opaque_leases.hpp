// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// In place of residual_leases, where a codec writes row by row: every row of a page can be continued.
struct no_residual_leases {
    template <class PageManager>
    no_residual_leases(const PageManager&, std::size_t, residual_window) {}
    template <class Pages>
    static constexpr std::size_t kept(const Pages&, std::size_t tokens) noexcept {
        return tokens;
    }
    static constexpr std::size_t needed(bool, std::size_t, std::size_t, std::size_t) noexcept { return 0; }
    static constexpr bool open(sequence_state&, std::uint32_t, std::size_t) noexcept { return true; }
    static constexpr bool open_spliced(sequence_state&) noexcept { return true; }
    static constexpr codec::residual_page* given(const sequence_state&, std::size_t) noexcept { return nullptr; }
    static std::size_t finalize(const sequence_state& state) noexcept { return state.tokens.size(); }
    static constexpr void end(residual_ring&) noexcept {}
};
/// The same where pages are opaque: a page is continued where its blob ends. `PageManager`: its index knows where.
template <class PageManager>
class opaque_leases : public no_residual_leases {
public:
    opaque_leases(const PageManager& pages, std::size_t page_tokens, residual_window window)
        : no_residual_leases(pages, page_tokens, window), pages_(pages), page_tokens_(page_tokens) {}

    /// The number of the first `tokens` tokens in these pages, page-table entries or page_ids, that end with a blob.
    template <class Pages>
    [[nodiscard]] std::size_t kept(const Pages& pages, std::size_t tokens) const noexcept {
        const std::size_t part = tokens % page_tokens_;
        return part == 0 || run_of(pages[tokens / page_tokens_]) == part ? tokens : tokens - part;
    }
    /// The same of a sequence, which ends with a blob.
    [[nodiscard]] std::size_t kept(const sequence_state& state, std::size_t tokens) const noexcept {
        return tokens == state.tokens.size() ? tokens : kept(state.table, tokens);
    }

private:
    [[nodiscard]] std::size_t run_of(page_id page) const noexcept {
        return pages_.index().contains(page) ? pages_.index().run(page).size() : 0;
    }
    [[nodiscard]] std::size_t run_of(const page_entry& entry) const noexcept { return run_of(entry.page); }

    const PageManager& pages_;
    std::size_t page_tokens_;
};

namespace detail {

// Whether a page has its blob, and those of the windows that it has blocks of.
template <class Core>
[[nodiscard]] bool has_blobs(const Core& core, page_id page) {
    const auto written = [](const auto& codec, std::span<const std::byte> bytes) { return !codec.blob(bytes).empty(); };
    if constexpr (Core::owns_blocks) {
        const auto& blocks = core.pages().blocks();
        for (std::size_t pool = 0; pool < blocks.size(); ++pool)
            if (!blocks.is_state(pool) && blocks.has(pool, page) &&
                !written(blocks.memory().codec(pool), blocks.memory().bytes(pool, blocks.block(pool, page))))
                return false;
        if (!blocks.paged())
            return true;
    }
    return written(core.codec(), core.storage().bytes(page));
}

} // namespace detail

}} // namespace kvcache
