// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/index/radix.hpp>
#include <kvcache/storage/external.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "requests.hpp"

namespace bench {

/// An index that finds full pages alone, as engines do that share whole blocks: a page that is equal in part is not
/// matched, and so is not used.
struct full_pages {
    using role = kvcache::index_role;
    class state : public kvcache::index::radix::state {
    public:
        state(kvcache::page_shape shape, std::size_t pages)
            : kvcache::index::radix::state(kvcache::index::radix{}.open(shape, pages)), page_tokens_(shape.tokens) {}

        [[nodiscard]] kvcache::index_match match(std::span<const kvcache::token_id> tokens) const {
            kvcache::index_match found = kvcache::index::radix::state::match(tokens);
            if (const std::size_t in_part = found.tokens % page_tokens_; in_part > 0) {
                found.tokens -= in_part;
                found.pages.pop_back();
            }
            return found;
        }

    private:
        std::size_t page_tokens_;
    };
    [[nodiscard]] state open(kvcache::page_shape shape, std::size_t pages) const { return {shape, pages}; }
};

static_assert(kvcache::index_policy<full_pages>);

/// Sends requests through the interface of a cache as an engine would, without a model: a prompt is matched, its other
/// tokens are reserved and committed at once, and each generated token is reserved and committed alone. Eviction is
/// least recently used. If a request does not fit, the oldest one in flight is released first. With the index
/// `full_pages`, full pages alone are reused and published; with another one tokens are, as `acquire` does.
template <kvcache::index_policy Index>
class block_replay {
public:
    /// `in_flight`: the number of requests that hold their pages at a time, at most; the oldest is released first.
    block_replay(std::size_t pages, std::size_t in_flight, std::uint32_t page_tokens = 16)
        : page_tokens_(page_tokens),
          in_flight_(in_flight),
          cache_(kvcache::make_cache({.shape = {.tokens = page_tokens}, .limit = {.pages = pages}},
                                     kvcache::eviction::lru{}, Index{}, blocks())) {}

    /// Returns the number of prompt tokens that were reused. Throws: runtime_error if the request alone does not fit.
    std::size_t run(const block_request& request) {
        const std::span<const kvcache::token_id> tokens = request.tokens, prompt = tokens.first(request.prompt);
        if (flying_.size() == in_flight_)
            flying_.pop_front();
        const std::size_t last_page = (prompt.size() - 1) / page_tokens_ * page_tokens_;
        // The last token is always computed.
        sequence to = cache_.core().find(0, whole ? prompt.first(last_page) : prompt, !whole).sequence;
        const std::size_t reused = to.size();
        append(to, prompt.subspan(reused));
        for (std::size_t i = prompt.size(); i < tokens.size(); ++i)
            append(to, tokens.subspan(i, 1));
        flying_.push_back(std::move(to));
        return reused;
    }

    [[nodiscard]] kvcache::cache_stats stats() const { return cache_.stats(); }
    [[nodiscard]] kvcache::result<void> check() const { return cache_.check(); }

private:
    using cache = kvcache::cache<kvcache::eviction::lru, Index, kvcache::storage::external>;
    using sequence = typename cache::sequence;

    static constexpr bool whole = std::same_as<Index, full_pages>;
    // A host's blocks, of which nothing is moved.
    [[nodiscard]] static kvcache::storage::external blocks() {
        return {.copy = [](kvcache::page_id, kvcache::page_id) { return true; },
                .on_move = [](const kvcache::moved_entry&) {}};
    }

    void append(sequence& to, std::span<const kvcache::token_id> tokens) {
        if (const std::size_t end = to.size() + tokens.size(); whole)
            to.set_cacheable_limit(end - end % page_tokens_);
        auto rows = cache_.reserve(to, tokens.size());
        for (; !rows && !flying_.empty(); rows = cache_.reserve(to, tokens.size()))
            flying_.pop_front();
        if (!rows)
            throw std::runtime_error(rows.error().message);
        rows->commit(tokens);
    }

    std::size_t page_tokens_;
    std::size_t in_flight_;
    cache cache_;
    std::deque<sequence> flying_;
};

} // namespace bench
