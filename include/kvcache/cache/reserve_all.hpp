// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/reserve_options.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/result.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Rows to reserve for a sequence.
template <class Cache>
struct reservation {
    typename Cache::sequence* to = nullptr;
    std::size_t rows = 0;
    reserve_options options = {};
};

/// Reserves rows for several sequences of a cache, for all or for none. The leases are in the order of the batch.
/// Requires: the sequences are different ones. Errors: those of reserve, with the index in the batch; no sequence has
/// changed then, but unreferenced pages may have been evicted. Throws: bad_alloc, likewise.
template <class Cache>
[[nodiscard]] result<std::vector<typename Cache::lease>> reserve_all(Cache& cache,
                                                                     std::span<const reservation<Cache>> batch) {
    std::vector<typename Cache::lease> made;
    made.reserve(batch.size());
    for (const reservation<Cache>& one : batch) {
        require(one.to != nullptr, "a reservation names its sequence");
        auto rows = cache.reserve(*one.to, one.rows, one.options);
        if (!rows) {
            error why = rows.error();
            why.message = detail::joined({"request ", std::to_string(made.size()), " of ", std::to_string(batch.size()),
                                          " of the batch: ", why.message});
            return why;
        }
        made.push_back(std::move(*rows));
    }
    return made;
}

}} // namespace kvcache
