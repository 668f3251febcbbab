// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/little_endian.hpp>
#include <kvcache/kernel/block_format.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernel/numbers.hpp"

namespace blocks {

namespace kv = kvcache;

/// Offsets in a block of its binary16 scale, and of its binary16 offset.
struct half_fields {
    std::optional<std::size_t> scale, offset;
};

inline half_fields fields_of(kv::block_format format) {
    using enum kv::block_format;
    switch (format) {
    case q4_1:
    case q5_1:
    case q4_k:
    case q5_k:
        return {0, 2};
    case q2_k:
        return {80, 82};
    case q3_k:
        return {108, {}};
    case q6_k:
        return {208, {}};
    case mxfp4:
        return {};
    default:
        return {0, {}};
    }
}

/// Bytes of blocks, of a hash. Their scales may be infinite or NaN.
inline std::vector<std::byte> random(kv::block_format format, std::size_t count) {
    std::vector<std::byte> made(count * kv::shape_of(format).bytes);
    for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = static_cast<std::byte>(numbers::hashed(static_cast<std::uint64_t>(format), i) >> 56);
    return made;
}

inline void set_half(std::span<std::byte> block, std::optional<std::size_t> at, std::uint32_t bits) {
    if (at)
        kv::store_little(block, *at, static_cast<std::uint16_t>(bits));
}

/// The same with every pair of 70 extreme scales and offsets: zeros, subnormals, infinities, NaN.
inline std::vector<std::byte> extreme(kv::block_format format) {
    std::vector<std::uint32_t> halves;
    for (const std::uint32_t sign : {0u, 1u})
        for (const std::uint32_t exponent : {0u, 1u, 14u, 15u, 16u, 30u, 31u})
            for (const std::uint32_t fraction : {0u, 1u, 0x155u, 0x200u, 0x3FFu})
                halves.push_back(sign << 15 | exponent << 10 | fraction);
    const std::size_t size = kv::shape_of(format).bytes, pairs = halves.size() * halves.size();
    auto made = random(format, pairs);
    const half_fields at = fields_of(format);
    for (std::size_t i = 0; i < pairs; ++i) {
        const auto block = std::span(made).subspan(i * size, size);
        set_half(block, at.scale, halves[i % halves.size()]);
        set_half(block, at.offset, halves[i / halves.size()]);
    }
    return made;
}

/// The same with weights like those of a model: scales of 2^-9 to 2^-7 with either sign.
inline std::vector<std::byte> usual(kv::block_format format, std::size_t count, std::uint64_t seed) {
    const std::size_t size = kv::shape_of(format).bytes;
    std::vector<std::byte> made(count * size);
    for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = static_cast<std::byte>(numbers::hashed(seed, i) >> 56);
    const half_fields at = fields_of(format);
    for (std::size_t i = 0; i < count; ++i) {
        const auto block = std::span(made).subspan(i * size, size);
        const auto bits = static_cast<std::uint32_t>(numbers::hashed(seed + 1, i) >> 32);
        set_half(block, at.scale, (bits & 0x8000u) | (6u + (bits >> 10 & 1u)) << 10 | (bits & 0x3FFu));
        set_half(block, at.offset, (bits >> 16 & 0x8000u) | (6u + (bits >> 26 & 1u)) << 10 | (bits >> 16 & 0x3FFu));
        if (format == kv::block_format::mxfp4)
            block[0] = static_cast<std::byte>(118u + (bits & 3u));
    }
    return made;
}

/// Every quantised format.
inline std::vector<kv::block_format> quantized() {
    std::vector<kv::block_format> made;
    for (const kv::block_format format : kv::block_formats)
        if (kv::is_quantized(format))
            made.push_back(format);
    return made;
}

} // namespace blocks
