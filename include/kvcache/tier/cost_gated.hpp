// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/load_cost.hpp>
#include <kvcache/tier/memory.hpp>
#include <kvcache/tier/run.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Wraps a tier, and reads it only where that is cheaper than computing anew. It compares the load times measured on
/// this host with the prefill times. A skipped run is counted (tier_stats::slower) and makes the next read more
/// likely, so that a tier that was slow for a while is tried again.
template <tier_policy Inner = memory<>>
struct cost_gated {
    using role = tier_role;
    Inner inner = {};
    double margin = 1.0; ///< Maximum time of a load, as a multiple of the prefill time.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy Inner>
class cost_gated<Inner>::state {
public:
    explicit state(const cost_gated& how) : held_(std::make_unique<held>(how.margin)), inner_(how.inner.open()) {}

    /// Returns whether reading this many records is worth it compared with a prefill of known duration.
    [[nodiscard]] bool worth(std::size_t records, double prefill_seconds) {
        const std::lock_guard guard(held_->lock);
        const bool is = held_->cost.seconds(records) <= held_->margin * prefill_seconds;
        if (!is)
            held_->cost.doubt();
        return is;
    }
    /// Records the duration of a read of this many records, checks included.
    void took(std::size_t records, double seconds) {
        const std::lock_guard guard(held_->lock);
        held_->cost.measure(records, seconds);
    }

    template <class Use>
    [[nodiscard]] result<bool> read(const sha256_digest& name, Use&& use) {
        return inner_.read(name, use);
    }
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const sha256_digest> names, Use&& use) {
        return tier::read_run(inner_, names, use);
    }
    [[nodiscard]] std::size_t count_prefix_hits(std::span<const sha256_digest> names) {
        return tier::count_prefix_hits(inner_, names);
    }
    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        return inner_.put(entry, pieces);
    }
    [[nodiscard]] bool contains(const sha256_digest& name) { return inner_.contains(name); }
    [[nodiscard]] result<void> erase(const sha256_digest& name) { return inner_.erase(name); }
    [[nodiscard]] result<void> flush() { return inner_.flush(); }
    [[nodiscard]] result<void> status() const { return inner_.status(); }
    [[nodiscard]] tier_counts counts() const { return inner_.counts(); }
    [[nodiscard]] bool is_null() const noexcept { return kvcache::is_null(inner_); }
    [[nodiscard]] std::size_t parallel_reads() const noexcept { return max_parallel_reads(inner_); }

private:
    struct held {
        explicit held(double share) : margin(share) {}
        const double margin;
        std::mutex lock;
        load_cost cost;
    };
    std::unique_ptr<held> held_;
    decltype(std::declval<const Inner&>().open()) inner_;
};

static_assert(tier_policy<cost_gated<>>);

}}} // namespace kvcache::tier
