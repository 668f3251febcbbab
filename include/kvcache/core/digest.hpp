// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/intrinsics.hpp>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <xxhash.h>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A 128-bit hash of some bytes.
struct digest {
    std::uint64_t low = 0;
    std::uint64_t high = 0;

    friend constexpr bool operator==(const digest&, const digest&) = default;
    friend constexpr auto operator<=>(const digest&, const digest&) = default;
};

/// Returns 32 hexadecimal digits, the high half first.
[[nodiscard]] inline std::string to_string(const digest& d) {
    std::string text;
    for (const std::uint64_t half : {d.high, d.low})
        for (int shift = 60; shift >= 0; shift -= 4)
            text += "0123456789abcdef"[(half >> shift) & 15u];
    return text;
}

/// XXH3-64 of `data`, seeded with the hash of what precedes it. Not collision-resistant against an adversary. Cost:
/// about 10 ns plus 0.1 ns a byte.
[[nodiscard]] inline std::uint64_t seeded_hash(std::uint64_t past, std::span<const std::byte> data) {
    return XXH3_64bits_withSeed(data.data(), data.size(), past);
}

/// XXH3-128 of bytes given piece by piece. Not collision-resistant against an adversary: equal digests are a hint that
/// a comparison of the content must confirm.
class digest_builder {
public:
    digest_builder() noexcept { XXH3_128bits_reset(&state_); }

    digest_builder& bytes(std::span<const std::byte> data) {
        XXH3_128bits_update(&state_, data.data(), data.size());
        return *this;
    }

    /// Appends eight bytes, little-endian.
    digest_builder& number(std::uint64_t n) {
        std::byte little[8];
        for (std::size_t i = 0; i < 8; ++i)
            little[i] = static_cast<std::byte>(n >> (8 * i) & 0xff);
        return bytes(little);
    }

    /// Appends the length, then the bytes, so that consecutive texts are unambiguous.
    digest_builder& text(std::string_view words) {
        number(words.size());
        return bytes(std::as_bytes(std::span(words)));
    }

    digest_builder& nested(const digest& d) { return number(d.low).number(d.high); }

    [[nodiscard]] digest finish() const {
        const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
        return {hash.low64, hash.high64};
    }

private:
    XXH3_state_t state_;
};

}} // namespace kvcache
