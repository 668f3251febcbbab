// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/memory.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// A cost model of reading runs of records on this machine, learned from timed reads: a latency, and a time per
/// record. Both are fitted by least squares with exponentially decaying weights. Before the first measurement the
/// estimate is zero, so that a read is tried.
///
///     seconds(records) = wait + each * records
///
/// Cost: O(1) per call.
class load_cost {
public:
    /// Adds a measurement. Requires: records > 0 and seconds >= 0.
    void measure(std::size_t records, double seconds) {
        expects(records > 0 && seconds >= 0.0, "a measurement has records, and a time that is not negative");
        const double n = static_cast<double>(records);
        const auto fade = [n](double& sum, double product) { sum = 0.9 * sum + product / n; }; // noise grows with n
        fade(one_, 1.0);
        fade(n_, n);
        fade(nn_, n * n);
        fade(s_, seconds);
        fade(ns_, n * seconds);
        doubt_ = 1.0;
        fit();
    }

    /// Returns the estimated seconds to read this many records.
    [[nodiscard]] double seconds(std::size_t records) const noexcept {
        return doubt_ * (wait_ + each_ * static_cast<double>(records));
    }

    /// Lowers the estimate by 5 % until the next measurement.
    void doubt() noexcept { doubt_ *= 0.95; }

private:
    // Fits the best pair with no negative value; only a time per record if all measurements had the same size.
    void fit() noexcept {
        const double independent = one_ * nn_ - n_ * n_;
        wait_ = 0.0;
        each_ = ns_ / nn_;
        if (independent <= 1e-6 * one_ * nn_)
            return;
        const double each = (one_ * ns_ - n_ * s_) / independent;
        const double wait = (nn_ * s_ - n_ * ns_) / independent;
        if (wait <= 0.0)
            return;
        wait_ = each > 0.0 ? wait : s_ / one_;
        each_ = std::max(each, 0.0);
    }

    double wait_ = 0.0, each_ = 0.0, doubt_ = 1.0;
    double one_ = 0.0, n_ = 0.0, nn_ = 0.0, s_ = 0.0, ns_ = 0.0; // sums over records and seconds
};

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
    [[nodiscard]] std::vector<bool> present(std::span<const sha256_digest> names) {
        return tier::present(inner_, names);
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
