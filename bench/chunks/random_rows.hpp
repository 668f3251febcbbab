// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace bench {

/// A recompute policy that recomputes a random share of the reused tokens: the baseline that any selection has to beat.
/// The draw depends only on the seed and the token's position.
struct random_rows {
    using role = kvcache::recompute_role;
    double fraction = 0.15; ///< Recomputed share of the reused tokens.
    std::uint64_t seed = 1;
    class state;
    [[nodiscard]] state open(kvcache::page_shape shape) const;
};

class random_rows::state : public kvcache::recompute::exact_prefix::state {
public:
    state(double fraction, std::uint64_t seed) : fraction_(fraction), seed_(seed) {}

    void select(std::span<const kvcache::reused_span> runs, std::vector<std::size_t>& positions) const {
        std::vector<std::pair<std::uint64_t, std::size_t>> lots;
        for (const kvcache::reused_span& run : runs)
            for (std::size_t at = run.first; at < run.first + run.count; ++at) {
                const std::array<std::uint64_t, 1> drawn{at};
                lots.emplace_back(kvcache::seeded_hash(seed_, std::as_bytes(std::span(drawn))), at);
            }
        std::ranges::sort(lots);
        lots.resize(static_cast<std::size_t>(std::clamp(fraction_, 0.0, 1.0) * static_cast<double>(lots.size())));
        const std::size_t old = positions.size();
        for (const auto& lot : lots)
            positions.push_back(lot.second);
        std::sort(positions.begin() + static_cast<std::ptrdiff_t>(old), positions.end());
    }

private:
    double fraction_;
    std::uint64_t seed_;
};

inline random_rows::state random_rows::open(kvcache::page_shape) const {
    return {fraction, seed};
}

static_assert(kvcache::recompute_policy<random_rows> && kvcache::chunk_recompute_state<random_rows::state>);

} // namespace bench
