// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/acquire_options.hpp>
#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/prompt_access.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A sequence for a prompt, and a lease over the rows of the prompt that have to be computed. The first lease.first()
/// tokens are cached. After the lease is committed the sequence is continued with reserve. For threads it counts as one
/// object with its sequence and its lease. Requires: the cache outlives it.
template <class Cache>
struct acquired {
    typename Cache::sequence sequence;
    typename Cache::lease lease; ///< Destroyed before the sequence.

    acquired(typename Cache::sequence of, typename Cache::lease rows)
        : sequence(std::move(of)), lease(std::move(rows)) {}
    acquired(acquired&&) noexcept = default;
    acquired& operator=(acquired&& other) noexcept {
        lease = std::move(other.lease); // it rolls back the sequence that is replaced next
        sequence = std::move(other.sequence);
        return *this;
    }
    ~acquired() = default;

    /// Errors: those of reserve, and pending; nothing has changed then.
    [[nodiscard]] static result<acquired> of(auto& cache, std::span<const token_id> tokens, acquire_options options) {
        auto& core = cache_access::cache_of(cache);
        while (true) {
            const std::uint64_t ended = prompt_access::ended(core);
            auto found = cache.match(tokens);
            const auto plan = cache.plan(found);
            auto made = cache.open(std::move(found), plan);
            if (auto rows = prompt_access::reserve(core, made, tokens, options, ended)) {
                if (!*rows)
                    return rows->error();
                return acquired(std::move(made), std::move(**rows));
            }
        }
    }
};

}} // namespace kvcache
