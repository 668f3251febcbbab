// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache::inline KVCACHE_ABI {

/// What reading a run of records takes on this machine, learned from the reads that were timed: a wait, and a time for
/// each record. The two are fitted by least squares, in which old measurements fade. Before the first, a read takes
/// nothing, so that one is tried.
///
///     seconds(records) = wait + each * records
///
/// Cost: O(1) each.
class load_cost {
public:
    /// So many records took so long. Requires: records > 0 and seconds >= 0.
    void measure(std::size_t records, double seconds) {
        expects(records > 0 && seconds >= 0.0, "a measurement has records, and a time that is not negative");
        const double n = static_cast<double>(records);
        const auto fade = [n](double& sum, double product) { sum = 0.9 * sum + product / n; }; // noise grows with them
        fade(one_, 1.0);
        fade(n_, n);
        fade(nn_, n * n);
        fade(s_, seconds);
        fade(ns_, n * seconds);
        doubt_ = 1.0;
        fit();
    }

    /// What so many records take.
    [[nodiscard]] double seconds(std::size_t records) const noexcept {
        return doubt_ * (wait_ + each_ * static_cast<double>(records));
    }

    /// What was measured is held a little less likely, until something is measured anew.
    void doubt() noexcept { doubt_ *= 0.95; }

private:
    // The best pair of which neither is negative; a time for each record alone where all measurements were alike.
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

} // namespace kvcache
