// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The parts of a prompt that may come from the cache.
enum class reuse_mode : std::uint8_t {
    baseline, ///< Nothing is reused.
    prefix,   ///< The longest cached prefix, which is exact.
    chunks,   ///< The prefix, and cached chunks at any position; the rows after a chunk are approximate.
};

/// Token counts of a prompt, by origin.
struct reuse_counts {
    std::size_t prompt = 0;
    std::size_t exact = 0;       ///< Reused with the same bits that a prefill would compute.
    std::size_t approximate = 0; ///< Reused from another context, not recomputed.
    std::size_t recomputed = 0;  ///< Found in a cached chunk, but recomputed.
    std::size_t prefilled = 0;   ///< Not cached, therefore computed.
    std::size_t layer_rows = 0;  ///< Rows times layers that were computed, recomputation included.

    /// The share of the prompt that was not computed, from 0 to 1.
    [[nodiscard]] double reuse_ratio() const noexcept {
        return prompt == 0 ? 0.0 : static_cast<double>(exact + approximate) / static_cast<double>(prompt);
    }
};

}} // namespace kvcache
