// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/observer/metrics.hpp>

#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// All Prometheus metrics of a cache with the observer `metrics`: event counts and current occupancy. Thread-safe if
/// the cache has a mutex.
template <class Cache>
[[nodiscard]] std::string metrics_text(const Cache& cache) {
    observer::exposition::labels labels;
    std::string text;
    cache.with_observer([&](const observer::metrics::state& observer) {
        labels = observer.labels();
        text = observer.text();
    });
    const cache_stats now = cache.stats();
    observer::exposition to(labels);
    to.gauge("kvcache_pages", "Pages that fit the budget.", now.pages);
    to.gauge("kvcache_pages_free", "Pages never used, or given back.", now.free);
    to.gauge("kvcache_pages_in_use", "Pages referenced by live sequences.", now.in_use);
    to.gauge("kvcache_pages_evictable", "Unreferenced pages, cached for the next match.", now.evictable);
    to.gauge("kvcache_page_bytes", "Bytes of a page.", now.page_bytes);
    to.gauge("kvcache_sequences", "Live sequences and matches.", now.sequences);
    return text + to.text();
}

}} // namespace kvcache
