// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics, inlined into xxHash, for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

namespace kvcache {

/// XXH3-128 of a stream of parts. Each part and number goes in with its length fixed or before it, so that two streams
/// give the same digest only when all their parts are the same.
class xxh3_stream {
public:
    xxh3_stream() noexcept { XXH3_128bits_reset(&state_); }

    /// Adds a whole number, as 8 little-endian bytes.
    void number(std::uint64_t value) noexcept {
        unsigned char bytes[8];
        for (std::size_t i = 0; i != 8; ++i)
            bytes[i] = static_cast<unsigned char>(value >> (8 * i));
        XXH3_128bits_update(&state_, bytes, sizeof bytes);
    }

    /// Adds bytes, their count first.
    void part(std::span<const std::byte> bytes) noexcept {
        number(bytes.size());
        if (!bytes.empty())
            XXH3_128bits_update(&state_, bytes.data(), bytes.size());
    }

    /// The digest of what was added so far.
    [[nodiscard]] digest finish() const noexcept {
        const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
        return {.low = hash.low64, .high = hash.high64};
    }

private:
    XXH3_state_t state_;
};

} // namespace kvcache

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
