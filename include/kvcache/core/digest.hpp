// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/machine.hpp>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#if !__has_include(<xxhash.h>)
#error "kvcache: xxhash.h is not found; install xxHash (Debian: libxxhash-dev; vcpkg, Conan and MSYS2 have it too)"
#endif
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

/// The bytes of a text.
[[nodiscard]] inline std::span<const std::byte> text_bytes(std::string_view words) noexcept {
    return std::as_bytes(std::span(words.data(), words.size()));
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
        return bytes(text_bytes(words));
    }

    digest_builder& nested(const digest& d) { return number(d.low).number(d.high); }

    [[nodiscard]] digest finish() const {
        const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
        return {hash.low64, hash.high64};
    }

private:
    XXH3_state_t state_;
};

/// A bijective 64-bit mixer: murmur3's finalizer (Appleby). Every input bit affects every output bit, so tables can use
/// keys that are not hashes.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

/// A SHA-256 value, collision-resistant also against an adversary, in the byte order of FIPS 180-4.
struct sha256_digest {
    std::array<std::byte, 32> bytes = {};

    friend constexpr bool operator==(const sha256_digest&, const sha256_digest&) = default;
    // The type is named for arrays that have only <, as those of libc++ 14.
    friend constexpr std::strong_ordering operator<=>(const sha256_digest&, const sha256_digest&) = default;
};

/// Returns 64 hexadecimal digits.
[[nodiscard]] inline std::string to_string(const sha256_digest& d) {
    std::string text;
    for (const std::byte b : d.bytes)
        for (const int shift : {4, 0})
            text += "0123456789abcdef"[std::to_integer<unsigned>(b) >> shift & 15u];
    return text;
}

/// Compares two digests in constant time, which does not reveal where they differ.
[[nodiscard]] constexpr bool same_in_constant_time(const sha256_digest& a, const sha256_digest& b) noexcept {
    std::byte difference{};
    for (std::size_t i = 0; i < a.bytes.size(); ++i)
        difference |= a.bytes[i] ^ b.bytes[i];
    return difference == std::byte{};
}

}} // namespace kvcache
