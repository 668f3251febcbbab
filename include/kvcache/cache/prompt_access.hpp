// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/acquire_options.hpp>
#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/locking/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The prompts that leases of a cache compute, for acquire. Not for hosts. Each function takes the cache's lock.
class prompt_access {
public:
    /// The number of leases of prompts that have ended.
    template <class Cache>
    [[nodiscard]] static std::uint64_t ended(const Cache& cache) {
        const std::lock_guard guard(cache.lock_);
        return cache.sequences_.prompts_ended();
    }

    template <class Cache>
    [[nodiscard]] static std::size_t pending(const Cache& cache, std::uint32_t tenant,
                                             std::span<const token_id> tokens) {
        const std::lock_guard guard(cache.lock_);
        return cache.sequences_.pending(tenant, tokens);
    }

    /// Reserves the rows of a prompt after those that a sequence has, and notes what they are, for acquire. Returns
    /// nullopt if the prompt has to be matched again, because a lease of a prompt has ended since there were `ended`,
    /// or this has waited for one. Errors: as reserve; pending. Cost: as the cache's `pending`, if it is to be looked
    /// for.
    template <class Cache>
    [[nodiscard]] static std::optional<result<typename Cache::lease>>
    reserve(Cache& cache, typename Cache::sequence& to, std::span<const token_id> tokens, acquire_options options,
            std::uint64_t ended) {
        const std::lock_guard guard(cache.lock_);
        sequence_state& state = to.state_for(cache);
        const std::size_t known = state.tokens.size();
        if (options.pending != pending_prefix::compute) {
            if (cache.sequences_.prompts_ended() != ended)
                return std::nullopt;
            // The last token is computed in any case.
            const auto shared = tokens.first(tokens.empty() ? 0 : tokens.size() - 1);
            if (const std::size_t soon = cache.sequences_.pending(state.tenant, shared); soon > known) {
                if constexpr (waiting_state<typename Cache::locking_type>)
                    if (options.pending == pending_prefix::wait) {
                        cache.lock_.wait();
                        return std::nullopt;
                    }
                return error{
                    error_code::pending, "tokens",
                    detail::joined({std::to_string(soon), " of ", std::to_string(tokens.size()),
                                    " tokens are being computed, and ", std::to_string(known), " are cached"})};
            }
        }
        const auto rest = tokens.subspan(known);
        state.lease.prompt.reserve(rest.size());
        auto made = cache_access::reserve(cache, to, rest.size(), options.reserve);
        if (made)
            state.lease.prompt.assign(rest.begin(), rest.end());
        return made;
    }
};

}} // namespace kvcache
