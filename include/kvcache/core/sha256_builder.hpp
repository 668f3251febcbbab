// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI {

/// SHA-256 of bytes given piece by piece (FIPS 180-4), for names and authentication of data that leaves the process.
/// Implemented here, so that every host writes the same records regardless of its libraries. Cost: about 5 ns a byte.
class sha256_builder {
public:
    sha256_builder& bytes(std::span<const std::byte> data) noexcept {
        const auto held = static_cast<std::size_t>(length_ % block_.size());
        length_ += data.size();
        if (held > 0) {
            const std::size_t more = std::min(data.size(), block_.size() - held);
            ranges::copy(data.first(more), block_.begin() + static_cast<std::ptrdiff_t>(held));
            data = data.subspan(more);
            if (held + more < block_.size())
                return *this;
            compress(block_);
        }
        for (; data.size() >= block_.size(); data = data.subspan(block_.size()))
            compress(data.first<64>());
        ranges::copy(data, block_.begin());
        return *this;
    }

    /// Appends eight bytes, little-endian.
    sha256_builder& number(std::uint64_t n) noexcept {
        std::array<std::byte, 8> little;
        store_little(little, 0, n);
        return bytes(little);
    }

    /// Appends the length, then the bytes, so that consecutive texts are unambiguous.
    sha256_builder& text(std::string_view words) noexcept { return number(words.size()).bytes(text_bytes(words)); }

    sha256_builder& nested(const sha256_digest& d) noexcept { return bytes(d.bytes); }

    [[nodiscard]] sha256_digest finish() const noexcept {
        sha256_builder last = *this;
        std::array<std::byte, 72> end = {std::byte{0x80}};
        const std::size_t padding = (119 - length_ % 64) % 64; // zeros, so that the length ends a block
        for (std::size_t i = 0; i < 8; ++i)
            end[1 + padding + i] = static_cast<std::byte>(length_ * 8 >> (56 - 8 * i) & 0xff);
        last.bytes(std::span(end).first(1 + padding + 8));
        sha256_digest made;
        for (std::size_t i = 0; i < made.bytes.size(); ++i)
            made.bytes[i] = static_cast<std::byte>(last.state_[i / 4] >> (24 - i % 4 * 8) & 0xff);
        return made;
    }

private:
    void compress(std::span<const std::byte, 64> block) noexcept {
        // The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
        static constexpr std::uint32_t k[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        std::uint32_t w[64];
        for (std::size_t i = 0; i < 16; ++i)
            w[i] = std::to_integer<std::uint32_t>(block[4 * i]) << 24 |
                   std::to_integer<std::uint32_t>(block[4 * i + 1]) << 16 |
                   std::to_integer<std::uint32_t>(block[4 * i + 2]) << 8 |
                   std::to_integer<std::uint32_t>(block[4 * i + 3]);
        for (std::size_t i = 16; i < 64; ++i) {
            const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
            const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
            const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i];
            const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
            const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1;
            d = c, c = b, b = a, a = t1 + t2;
        }
        const std::uint32_t after[8] = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < 8; ++i)
            state_[i] += after[i];
    }

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> block_ = {};
    std::uint64_t length_ = 0;
};

/// HMAC-SHA-256 of bytes given piece by piece (RFC 2104, FIPS 198-1). A copy made before any bytes restarts with the
/// key already absorbed.
class hmac_builder {
public:
    explicit hmac_builder(std::span<const std::byte> key) noexcept {
        std::array<std::byte, 64> block = {};
        if (key.size() > block.size())
            ranges::copy(sha256_builder().bytes(key).finish().bytes, block.begin());
        else
            ranges::copy(key, block.begin());
        const auto turned = [&block](std::byte pad) {
            std::array<std::byte, 64> made = block;
            for (std::byte& b : made)
                b ^= pad;
            return made;
        };
        inner_.bytes(turned(std::byte{0x36}));
        outer_.bytes(turned(std::byte{0x5c}));
    }

    hmac_builder& bytes(std::span<const std::byte> data) noexcept {
        inner_.bytes(data);
        return *this;
    }
    hmac_builder& number(std::uint64_t n) noexcept {
        inner_.number(n);
        return *this;
    }
    hmac_builder& text(std::string_view words) noexcept {
        inner_.text(words);
        return *this;
    }
    hmac_builder& nested(const sha256_digest& d) noexcept { return bytes(d.bytes); }

    [[nodiscard]] sha256_digest finish() const noexcept {
        return sha256_builder(outer_).nested(inner_.finish()).finish();
    }

private:
    sha256_builder inner_, outer_;
};

}} // namespace kvcache
