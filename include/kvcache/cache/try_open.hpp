// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/cache_config.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/result.hpp>

#include <cstddef>
#include <new>
#include <optional>
#include <string>

#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Checks what a cache is opened for. Errors: those of open_cache, except a failed allocation.
template <class Cache>
[[nodiscard]] result<void> check_config(const cache_config& config, std::size_t page_bytes) {
    if (Cache::has_tier && config.id == identity{})
        return error{error_code::mismatched, "identity", "a cache with a tier has an identity"};
    const std::size_t pages = config.limit.pages_of(page_bytes);
    if (pages == 0)
        return error{error_code::out_of_range, "limit",
                     joined({"a limit of ", std::to_string(config.limit.bytes),
                             " bytes is less than one page, which has ", std::to_string(page_bytes)})};
    constexpr std::size_t records_bytes = 256; // what the cache remembers of a page
    const auto machine =
        static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (pages > machine / records_bytes)
        return error{error_code::out_of_memory, "limit",
                     joined({"the records of ", std::to_string(pages), " pages do not fit into the machine's ",
                             std::to_string(machine), " bytes"})};
    return {};
}

/// Opens a cache if its configuration is right. `open` returns the cache. Errors: those of open_cache.
template <class Cache, class Codec, class Open>
[[nodiscard]] result<Cache> try_open(const cache_config& config, const Codec& codec, Open&& open) {
    if (!config.shape.valid())
        return error{error_code::out_of_range, "shape",
                     "a page shape has no extent that is zero or too large, and tokens is a multiple of 16"};
    if (const auto right = check_config<Cache>(config, codec.open(config.shape).page_bytes()); !right)
        return right.error();
    std::optional<result<Cache>> made;
    if (!completes<std::bad_alloc>([&] { made.emplace(open()); }))
        return error{error_code::out_of_memory, "limit", "there is no memory for the records of the cache's pages"};
    return std::move(*made);
}

}}} // namespace kvcache::detail
