// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/counting.hpp>
#include <kvcache/observer/exposition.hpp>

#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Counts events like `counting` and reports them in Prometheus' text format. `cache/metrics_text.hpp` adds the fill
/// level of the cache.
struct metrics {
    using role = observer_role;
    exposition::labels labels = {}; ///< Labels of every sample: {{"model", "llama"}}.
    class state;
    [[nodiscard]] state open() const;
};

class metrics::state {
public:
    explicit state(exposition::labels labels) : labels_(std::move(labels)) {}

    void on(const event& what) noexcept { counting_.on(what); }

    [[nodiscard]] const event_counts& counts() const noexcept { return counting_.counts(); }
    [[nodiscard]] const exposition::labels& labels() const noexcept { return labels_; }

    /// Returns the counters in Prometheus' text format. Requires: the label names are valid.
    [[nodiscard]] std::string text() const {
        const event_counts& now = counts();
        exposition to(labels_);
        to.counter("kvcache_lookups_total", "Prompts looked up.", now.lookups);
        to.counter("kvcache_tokens_looked_up_total", "Tokens of the prompts looked up.", now.tokens_looked_up);
        to.counter("kvcache_tokens_found_total", "Tokens of them that were known.", now.tokens_found);
        to.counter("kvcache_tokens_stored_total", "Tokens committed.", now.tokens_stored);
        to.counter("kvcache_pages_published_total", "Full pages made known.", now.pages_published);
        to.counter("kvcache_pages_copied_total", "Shared pages copied before a write.", now.pages_copied);
        to.counter("kvcache_pages_evicted_total", "Pages that left to make room.", now.pages_evicted);
        to.counter("kvcache_refusals_total", "Reservations that failed for want of pages.", now.refusals);
        const double share = static_cast<double>(now.tokens_found) / static_cast<double>(now.tokens_looked_up);
        if (now.tokens_looked_up > 0)
            to.gauge("kvcache_hit_ratio", "Tokens found, of those looked up, since the start.", share);
        return std::move(to).text();
    }

private:
    exposition::labels labels_;
    counting::state counting_;
};

inline metrics::state metrics::open() const {
    return state(labels);
}

static_assert(observer_policy<metrics>);

}}} // namespace kvcache::observer
