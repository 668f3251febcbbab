// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/any_policy.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/hash/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/storage/all.hpp>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Names of policies, as type_name() gives them.
struct policy_names {
    std::string storage = type_name<storage::heap>();
    std::string hash = type_name<hash::xxh3>();
    std::string index = type_name<index::radix>();
    std::string eviction = type_name<eviction::learned_reuse>();
};

/// A cache whose storage, hash, index and eviction policies are chosen at run time; the other roles keep their types.
/// Each policy call costs one indirect jump.
template <policy... Others>
using any_cache = cache<any_storage<storage_policies>, any_hash<hash_policies>, any_index<index_policies>,
                        any_eviction<eviction_policies>, Others...>;

/// Opens a cache with the policies of these names, each with its standard options.
/// Errors: not_found, with the role as its field and the available names in its message; those of open_cache.
template <policy... Others>
[[nodiscard]] result<std::unique_ptr<any_cache<Others...>>>
make_any_cache(const policy_names& names, identity id, page_shape shape, cache_limits limit, Others... others) {
    const auto storage = any_storage<storage_policies>::named(names.storage);
    const auto hash = any_hash<hash_policies>::named(names.hash);
    const auto index = any_index<index_policies>::named(names.index);
    const auto eviction = any_eviction<eviction_policies>::named(names.eviction);
    if (!storage)
        return storage.error();
    if (!hash)
        return hash.error();
    if (!index)
        return index.error();
    if (!eviction)
        return eviction.error();
    using made = any_cache<Others...>;
    const cache_config config{shape, limit, std::move(id)};
    const std::tuple given(*storage, *hash, *index, *eviction, std::move(others)...);
    auto cache = detail::try_open<made>(config, detail::opener<made>::codec(given),
                                        [&] { return detail::opener<made>::open(config, given); });
    if (!cache)
        return cache.error();
    return std::make_unique<made>(*std::move(cache));
}

}} // namespace kvcache
