// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Content that stays in a cache's memory while the host has no sequence of it: prompts, and, with the `chunk` index,
/// chunks. What is pinned is not evicted, and `clear_all` of the cache keeps it. The pages of all pins are limited by a
/// budget of their own. One thread at a time. Requires: the cache outlives it.
///
///     kvcache::content_pins pins(cache, 100);      // pages
///     if (auto held = pins.pin(tokens); !held) ... // not cached, or over the budget
template <class Cache>
class content_pins {
public:
    /// `pages`: the maximum number of pages of all pins.
    content_pins(Cache& cache, std::size_t pages) : cache_(cache), budget_(pages) {}

    /// Pins all pages of cached tokens: of a prompt from its first token, or of a registered chunk. A tier's pages are
    /// loaded first. With a codec of whole pages, the tokens after the last one are not kept, and are not pinned. No
    /// effect if they are pinned already. Errors: not_found, if memory and tier lack part of them, or if none is kept;
    /// out_of_memory, with the field "pins", if the pages would exceed the budget. Cost: as acquire.
    [[nodiscard]] result<void> pin(std::span<const token_id> tokens, const tenant& of = {}) {
        expects(!tokens.empty(), "content has a token");
        key_type key = key_of(tokens, of);
        if (pins_.count(key) > 0)
            return {};
        auto& core = cache_.core();
        auto found = core.find(core.number_of(of), tokens, false).sequence;
        const std::size_t whole = page_writer<typename Cache::codec_type>
                                      ? tokens.size() - tokens.size() % cache_.shape().tokens
                                      : tokens.size(); // that are kept
        if (whole > 0 && found.size() >= whole)
            return hold(std::move(key), std::move(found));
        if constexpr (knows_chunks<Cache>) {
            chunk_reuse<Cache> chunks(cache_);
            auto chunk = chunks.match(cache_.open(of), tokens);
            const std::size_t needed = std::min(whole, tokens.size() - 1); // never the last
            if (needed > 0 && chunk.map().tokens(reuse_kind::approximate) >= needed)
                return hold(std::move(key), std::move(chunk).take_pins());
        }
        return error{error_code::not_found, "pins",
                     detail::joined({"only ", std::to_string(found.size()), " of the ", std::to_string(tokens.size()),
                                     " tokens to pin are cached"})};
    }

    /// Returns whether the tokens were pinned; they are evictable now, unless another pin or a sequence has them.
    bool unpin(std::span<const token_id> tokens, const tenant& of = {}) {
        const auto at = pins_.find(key_of(tokens, of));
        if (at == pins_.end())
            return false;
        pins_.erase(at);
        return true;
    }

    /// Unpins everything.
    void clear() noexcept { pins_.clear(); }

    /// The number of pins.
    [[nodiscard]] std::size_t size() const noexcept { return pins_.size(); }
    /// The pages that they hold, each counted once. Cost: O(n log n).
    [[nodiscard]] std::size_t pages() const { return held().size(); }
    [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
    /// Pins that were refused because of the budget.
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }

private:
    using sequence = typename Cache::sequence;
    using key_type = std::pair<std::uint32_t, std::vector<token_id>>;

    [[nodiscard]] key_type key_of(std::span<const token_id> tokens, const tenant& of) const {
        return {cache_.core().number_of(of), std::vector<token_id>(tokens.data(), tokens.data() + tokens.size())};
    }

    void add_pages(const sequence& of, std::set<page_id>& to) const {
        const sequence_state& state = of.state_in(cache_.core());
        for (const page_entry& entry : state.table)
            to.insert(entry.page);
        to.insert(state.pinned_sources.begin(), state.pinned_sources.end());
    }
    [[nodiscard]] std::set<page_id> held() const {
        std::set<page_id> pages;
        for (const auto& [key, holder] : pins_)
            add_pages(holder, pages);
        return pages;
    }

    [[nodiscard]] result<void> hold(key_type key, sequence holder) {
        std::set<page_id> pages = held();
        const std::size_t before = pages.size();
        add_pages(holder, pages);
        if (pages.size() > budget_) {
            ++refused_;
            return error{error_code::out_of_memory, "pins",
                         detail::joined({"these tokens need ", std::to_string(pages.size() - before), " pages, and ",
                                         std::to_string(before), " of ", std::to_string(budget_), " are pinned"})};
        }
        pins_.emplace(std::move(key), std::move(holder));
        return {};
    }

    Cache& cache_;
    std::size_t budget_;
    std::map<key_type, sequence> pins_;
    std::uint64_t refused_ = 0;
};

template <class Cache>
content_pins(Cache&, std::size_t) -> content_pins<Cache>;

}} // namespace kvcache
