// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <cstddef>

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

}}} // namespace kvcache::tier
