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

namespace kvcache::inline KVCACHE_ABI {

/// Another tier that is read where that is quicker than computing anew: what loads have taken on this host is set
/// against what prefills have. A run that is not taken is counted (tier_stats::slower), and makes the next one
/// likelier, so that a tier that was slow for a while is tried again.
template <tier_policy Inner = memory<>>
struct if_faster {
    using role = tier_role;
    Inner inner = {};
    double margin = 1.0; ///< Of the time of a prefill, what a load may take.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy Inner>
class if_faster<Inner>::state {
public:
    explicit state(const if_faster& how) : held_(std::make_unique<held>(how.margin)), inner_(how.inner.open()) {}

    /// Whether so many records are worth reading in place of a prefill that is known to take so long.
    [[nodiscard]] bool worth(std::size_t records, double prefill_seconds) {
        const std::lock_guard guard(held_->lock);
        const bool is = held_->cost.seconds(records) <= held_->margin * prefill_seconds;
        if (!is)
            held_->cost.doubt();
        return is;
    }
    /// Reading so many has taken so long, checks and all.
    void took(std::size_t records, double seconds) {
        const std::lock_guard guard(held_->lock);
        held_->cost.measure(records, seconds);
    }

    template <class Use>
    [[nodiscard]] result<bool> read(const digest256& name, Use&& use) {
        return inner_.read(name, use);
    }
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const digest256> names, Use&& use) {
        return kvcache::read_run(inner_, names, use);
    }
    [[nodiscard]] std::size_t leading(std::span<const digest256> names) { return leading_in(inner_, names); }
    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        return inner_.put(entry, pieces);
    }
    [[nodiscard]] bool contains(const digest256& name) { return inner_.contains(name); }
    [[nodiscard]] result<void> erase(const digest256& name) { return inner_.erase(name); }
    [[nodiscard]] result<void> flush() { return inner_.flush(); }
    [[nodiscard]] result<void> status() const { return inner_.status(); }
    [[nodiscard]] tier_counts counts() const { return inner_.counts(); }
    [[nodiscard]] bool holds_nothing() const noexcept { return kvcache::holds_nothing(inner_); }
    [[nodiscard]] std::size_t readers() const noexcept { return readers_of(inner_); }

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

static_assert(tier_policy<if_faster<>>);

} // namespace kvcache
