// SPDX-License-Identifier: MIT
//
// Feeds arbitrary bytes to every decoder of a storage code, the first byte choosing it. A second pass makes the
// checksum fit, so that the code after it is reached; a third codes the bytes as numbers and damages the code.
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/codes.cpp -o fuzz -lzstd
//     ./fuzz -max_len=4096 -max_total_time=60 corpus/

#include <kvcache/kernel/entropy_code.hpp>
#include <kvcache/kernel/exponent_code.hpp>
#include <kvcache/kernel/zstd_code.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace {

using bytes = std::vector<std::byte>;

constexpr std::size_t most_numbers = 1 << 20; // zstd makes many of few

template <class Code>
void fit_checksum(bytes& code) {
    constexpr std::size_t at = Code::header_bytes - 8;
    if (code.size() < Code::header_bytes)
        return;
    const std::uint64_t sum = kvcache::seeded_hash(kvcache::seeded_hash(0, std::span(code).first(at)),
                                                   std::span(code).subspan(Code::header_bytes));
    std::memcpy(code.data() + at, &sum, sizeof sum);
}

template <class Code>
void decode(const bytes& given) {
    const bytes code(given); // its own allocation, of its very size
    const auto numbers = Code::count(code);
    if (!numbers) {
        if (numbers.error().field.empty() || numbers.error().message.empty())
            std::abort();
        return;
    }
    if (*numbers > most_numbers)
        return;
    std::vector<typename Code::number_type> to(*numbers);
    const auto read = Code::decode(code, to);
    if (!read && (read.error().field.empty() || read.error().message.empty()))
        std::abort();
    to.resize(*numbers + 1);
    if (Code::decode(code, to))
        std::abort();
}

template <class Code>
void try_all(const bytes& given) {
    using number = typename Code::number_type;
    decode<Code>(given);
    bytes fitted = given;
    fit_checksum<Code>(fitted);
    decode<Code>(fitted);

    std::vector<number> numbers(given.size() / 2 / sizeof(number));
    if (!numbers.empty())
        std::memcpy(numbers.data(), given.data(), numbers.size() * sizeof(number));
    bytes code = Code::encode(numbers);
    const auto count = Code::count(code);
    if (!count)
        std::abort();
    std::vector<number> back(*count);
    if (!Code::decode(code, back))
        std::abort();
    if (back.size() != numbers.size() ||
        (!back.empty() && std::memcmp(back.data(), numbers.data(), back.size() * sizeof(number)) != 0))
        std::abort();
    for (std::size_t i = given.size() / 2; i + 3 <= given.size(); i += 3) // a place and what becomes of it
        code[(std::to_integer<std::size_t>(given[i]) << 8 | std::to_integer<std::size_t>(given[i + 1])) %
             code.size()] ^= given[i + 2];
    fit_checksum<Code>(code);
    decode<Code>(code);
}

// Lengths of any kind and a stream of any length.
void read_prefix_code(const bytes& given) {
    kvcache::prefix_code::lengths_type lengths{};
    for (std::size_t i = 0; i < std::min<std::size_t>(given.size(), lengths.size()); ++i)
        lengths[i] = std::to_integer<std::uint8_t>(given[i]);
    if (!kvcache::prefix_code::valid(lengths))
        return;
    const kvcache::prefix_code code(lengths);
    const bytes stream(given.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(given.size(), 256)),
                       given.end());
    std::array<kvcache::prefix_code::reader, 2> both{kvcache::prefix_code::reader(stream),
                                                     kvcache::prefix_code::reader(stream)};
    kvcache::prefix_code::reader one(stream);
    for (std::size_t i = 0; i < 2 * stream.size() + 4; ++i) {
        std::uint8_t four[2][4], each[4];
        std::uint8_t* const to[] = {four[0], four[1]};
        code.read_four(both, to);
        for (std::uint8_t& byte : each)
            byte = code.read_one(one);
        if (!one.lost && (both[0].lost || std::memcmp(four[0], each, 4) != 0 || std::memcmp(four[1], each, 4) != 0))
            std::abort();
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0)
        return 0;
    const auto* const from = reinterpret_cast<const std::byte*>(data);
    const bytes given(from + 1, from + size);
    switch (data[0] % 7) {
    case 0:
        try_all<kvcache::exponent_code<float>>(given);
        break;
    case 1:
        try_all<kvcache::exponent_code<kvcache::bfloat16>>(given);
        break;
    case 2:
        try_all<kvcache::entropy_code<float>>(given);
        break;
    case 3:
        try_all<kvcache::entropy_code<kvcache::bfloat16>>(given);
        break;
    case 4:
        try_all<kvcache::zstd_code<float>>(given);
        break;
    case 5:
        try_all<kvcache::zstd_code<kvcache::bfloat16>>(given);
        break;
    default:
        read_prefix_code(given);
        break;
    }
    return 0;
}
