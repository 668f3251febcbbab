// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/number_text.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/observer/counting.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Text in Prometheus' exposition format, version 0.0.4: each metric has its help, its type and one sample.
class exposition {
public:
    /// Label names and values. A name consists of letters, digits and underscores; it begins neither with a digit nor
    /// with "__".
    using labels = std::vector<std::pair<std::string, std::string>>;

    explicit exposition(const labels& on_every_sample) {
        for (const auto& [name, value] : on_every_sample) {
            expects(is_name(name), "a label's name has letters, digits and underscores");
            labels_ += (labels_.empty() ? "" : ",") + name + "=\"" + escaped(value, true) + '"';
        }
        if (!labels_.empty())
            labels_ = "{" + labels_ + "}";
    }

    /// Adds a counter, whose value only grows.
    void counter(std::string_view name, std::string_view help, std::integral auto value) {
        sample(name, help, "counter", std::to_string(value));
    }
    /// Adds a gauge, whose value may rise and fall.
    void gauge(std::string_view name, std::string_view help, std::integral auto value) {
        sample(name, help, "gauge", std::to_string(value));
    }
    void gauge(std::string_view name, std::string_view help, double value) {
        sample(name, help, "gauge", number(value));
    }

    [[nodiscard]] const std::string& text() const& noexcept { return text_; }
    [[nodiscard]] std::string text() && noexcept { return std::move(text_); }

    /// Escapes backslashes and newlines, and quotes inside a quoted text.
    [[nodiscard]] static std::string escaped(std::string_view words, bool in_quotes) {
        std::string made;
        for (const char c : words)
            if (c == '\\' || (c == '"' && in_quotes))
                made.append({'\\', c});
            else if (c == '\n')
                made += "\\n";
            else
                made += c;
        return made;
    }

private:
    [[nodiscard]] static bool is_name(std::string_view name) {
        const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
        return !name.empty() && letter(name.front()) && !name.starts_with("__") &&
               ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
    }

    [[nodiscard]] static std::string number(double value) {
        if (std::isnan(value))
            return "NaN";
        if (std::isinf(value))
            return value > 0 ? "+Inf" : "-Inf";
        return shortest_text(value);
    }

    void sample(std::string_view name, std::string_view help, std::string_view type, const std::string& value) {
        text_.append("# HELP ").append(name).append(" ").append(escaped(help, false)).append("\n# TYPE ");
        text_.append(name).append(" ").append(type).append("\n");
        text_.append(name).append(labels_).append(" ").append(value).append("\n");
    }

    std::string labels_;
    std::string text_;
};

/// All Prometheus metrics of a cache with the observer `metrics` below: event counts and current occupancy. Thread-safe
/// if the cache has a mutex.
template <class Cache>
[[nodiscard]] std::string metrics_text(const Cache& cache) {
    exposition::labels labels;
    std::string text;
    cache.with_observer([&](const auto& observer) {
        labels = observer.labels();
        text = observer.text();
    });
    const auto now = cache.stats();
    exposition to(labels);
    to.gauge("kvcache_pages", "Pages that fit the budget.", now.pages);
    to.gauge("kvcache_pages_free", "Pages never used, or given back.", now.free);
    to.gauge("kvcache_pages_in_use", "Pages referenced by live sequences.", now.in_use);
    to.gauge("kvcache_pages_evictable", "Unreferenced pages, cached for the next match.", now.evictable);
    to.gauge("kvcache_page_bytes", "Bytes of a page.", now.page_bytes);
    to.gauge("kvcache_sequences", "Live sequences and matches.", now.sequences);
    return text + to.text();
}

/// Counts events like `counting` and reports them in Prometheus' text format. `cache/metrics_text.hpp` adds the fill
/// level of the cache.
struct metrics {
    using role = observer_role;
    exposition::labels labels = {}; ///< Labels of every sample: {{"model", "llama"}}.

    class state {
    public:
        explicit state(exposition::labels labels) : labels_(std::move(labels)) {}

        void on(const event& what) noexcept { counting_.on(what); }

        [[nodiscard]] const event_counts& counts() const noexcept { return counting_.counts(); }
        void reset() noexcept { counting_.reset(); }
        [[nodiscard]] const exposition::labels& labels() const noexcept { return labels_; }

        /// Returns the counters in Prometheus' text format. Requires: the label names are valid.
        [[nodiscard]] std::string text() const {
            const event_counts& now = counts();
            exposition to(labels_);
            to.counter("kvcache_lookups_total", "Prompts looked up.", now.lookups);
            to.counter("kvcache_hits_total", "Prompts with a cached prefix.", now.hits);
            to.counter("kvcache_approximate_hits_total", "Prompts into which chunks were placed.",
                       now.approximate_hits);
            to.counter("kvcache_tokens_spliced_total", "Tokens of these chunks.", now.tokens_spliced);
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

    [[nodiscard]] state open() const { return state(labels); }
};

static_assert(observer_policy<metrics>);

}}} // namespace kvcache::observer
