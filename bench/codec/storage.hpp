// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/number_format.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/machine.hpp"
#include "sets.hpp"

namespace bench {

/// The compression ratio and speed of a lossless code on a set.
struct storage_cost {
    double times_smaller = 0.0;
    double encode_gbps = 0.0; ///< 10^9 uncompressed bytes encoded per second, on one thread.
    double decode_gbps = 0.0; ///< 10^9 uncompressed bytes decoded per second, on one thread.
};

/// Encodes and decodes a set five times, as values of the code's type, in blocks of 64 rows, and keeps the fastest
/// times. Throws: runtime_error if a decoded value differs.
template <class Code>
[[nodiscard]] storage_cost store(const number_set& set) {
    using number = typename Code::number_type;
    std::vector<number> numbers;
    for (const float x : set.numbers)
        if constexpr (std::is_same_v<number, float>)
            numbers.push_back(x);
        else
            numbers.push_back(kvcache::to_bfloat16(x));
    const std::size_t block = 64 * set.dim, blocks = (numbers.size() + block - 1) / block;
    const auto part = [&](std::size_t b, auto& of) {
        return std::span(of).subspan(b * block, std::min(block, numbers.size() - b * block));
    };
    const double bytes = static_cast<double>(numbers.size() * sizeof(number));
    std::vector<std::vector<std::byte>> codes(blocks);
    std::vector<number> back(numbers.size());
    double encoding = 1e9, decoding = 1e9, kept = 0.0;
    for (int again = 0; again < 5; ++again) {
        const stopwatch to;
        for (std::size_t b = 0; b < blocks; ++b)
            codes[b] = Code::encode(part(b, std::as_const(numbers)));
        encoding = std::min(encoding, to.seconds());
        const stopwatch from;
        for (std::size_t b = 0; b < blocks; ++b)
            if (!Code::decode(codes[b], part(b, back)))
                throw std::runtime_error("a code that was written is not read");
        decoding = std::min(decoding, from.seconds());
    }
    for (const auto& code : codes)
        kept += static_cast<double>(code.size());
    if (std::memcmp(back.data(), numbers.data(), numbers.size() * sizeof(number)) != 0)
        throw std::runtime_error("a number comes back as another");
    return {bytes / kept, bytes * 1e-9 / encoding, bytes * 1e-9 / decoding};
}

} // namespace bench
