// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/stats.hpp>
#include <kvcache/observer/metrics.hpp>

#include <string>

namespace kvcache::inline KVCACHE_ABI {

/// All that a cache with the observer `metrics` can tell Prometheus: what happened, and how full it is now. Any thread
/// may ask, where the cache is mutexed.
template <class Cache>
[[nodiscard]] std::string metrics_text(const Cache& cache) {
    exposition::labels labels;
    std::string text;
    cache.ask_observer([&](const metrics::state& observer) {
        labels = observer.labels();
        text = observer.text();
    });
    const cache_stats now = cache.stats();
    exposition to(labels);
    to.gauge("kvcache_pages", "Pages that fit the budget.", now.pages);
    to.gauge("kvcache_pages_free", "Pages never used, or given back.", now.free);
    to.gauge("kvcache_pages_held", "Pages held by live sequences.", now.held);
    to.gauge("kvcache_pages_idle", "Pages kept for the next match.", now.idle);
    to.gauge("kvcache_page_bytes", "Bytes of a page.", now.page_bytes);
    to.gauge("kvcache_sequences", "Live sequences and matches.", now.sequences);
    return text + to.text();
}

} // namespace kvcache
