// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A model of the time of a prefill on this machine, fitted to timed prefills. A token costs its projections,
/// independent of its position, and its attention, in proportion to its position. Both are fitted by least squares with
/// decaying weights. Before the first measurement, a token takes 0.1 ms.
///
///     seconds(rows from `first` on) = projections * rows + attention * (sum of their positions)
///
/// Cost: O(1) each.
class prefill_cost {
public:
    /// Records that `rows` rows from position `first` on took `seconds`. Requires: rows > 0 and seconds >= 0.
    void measure(std::size_t first, std::size_t rows, double seconds) {
        expects(rows > 0 && seconds >= 0.0, "a measurement has rows, and a time that is not negative");
        const double n = static_cast<double>(rows), p = positions(first, rows);
        const auto fade = [n](double& sum, double product) { sum = 0.98 * sum + product / n; }; // noise grows with rows
        fade(nn_, n * n);
        fade(np_, n * p);
        fade(pp_, p * p);
        fade(ns_, n * seconds);
        fade(ps_, p * seconds);
        fit();
    }

    /// The estimated time of `rows` rows from position `first` on.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return projections_ * static_cast<double>(rows) + attention_ * positions(first, rows);
    }

private:
    // Positions count from 1: a token attends to itself.
    [[nodiscard]] static double positions(std::size_t first, std::size_t rows) noexcept {
        const double n = static_cast<double>(rows);
        return n * (static_cast<double>(first) + (n + 1.0) / 2.0);
    }

    // The best nonnegative pair; projections alone if all measurements are nearly collinear.
    void fit() noexcept {
        const double independent = nn_ * pp_ - np_ * np_;
        projections_ = ns_ / nn_;
        attention_ = 0.0;
        if (independent <= 1e-6 * nn_ * pp_)
            return;
        const double attention = (nn_ * ps_ - np_ * ns_) / independent;
        const double projections = (pp_ * ns_ - np_ * ps_) / independent;
        if (attention <= 0.0)
            return;
        projections_ = std::max(projections, 0.0);
        attention_ = projections > 0.0 ? attention : ps_ / pp_;
    }

    double projections_ = 1e-4, attention_ = 0.0;                 // seconds per row, and per row and position
    double nn_ = 0.0, np_ = 0.0, pp_ = 0.0, ns_ = 0.0, ps_ = 0.0; // sums over rows, positions and seconds
};

}} // namespace kvcache
