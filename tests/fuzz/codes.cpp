// SPDX-License-Identifier: MIT
//
// Feeds arbitrary bytes to the decoder of compressed records, to that of a prefix code, and to both after their own
// encoders: bytes that are encoded come back, and a damaged code is refused or has other bytes.
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/codes.cpp -o fuzz
//     ./fuzz -max_len=4096 -max_total_time=60 corpus/

#include <kvcache/tier/shuffled_huffman.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

using bytes = std::vector<std::byte>;
using kvcache::tier::prefix_code;
using code = kvcache::tier::shuffled_huffman;

void decode(const bytes& given) {
    const bytes exact(given); // its own allocation, of its very size
    bytes to;
    static_cast<void>(code::decode(exact, to));
    if (to.size() > 8 * exact.size() + 7)
        std::abort();
}

// A header of any width and size before the bytes.
void decode_after_header(const bytes& given) {
    if (given.size() < 3)
        return;
    bytes made = code::encode({});
    made[4] = static_cast<std::byte>(1u << std::to_integer<unsigned>(given[0]) % 3);
    made[8] = given[1];
    made[9] = given[2];
    made.insert(made.end(), given.begin() + 3, given.end());
    decode(made);
}

void round_trip(const bytes& given) {
    const bytes record(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(given.size() / 2));
    bytes made = code::encode(record), back;
    if (!code::decode(made, back) || back != record)
        std::abort();
    for (std::size_t i = given.size() / 2; i + 3 <= given.size(); i += 3) // a place and what becomes of it
        made[(std::to_integer<std::size_t>(given[i]) << 8 | std::to_integer<std::size_t>(given[i + 1])) %
             made.size()] ^= given[i + 2];
    decode(made);
}

// Lengths of any kind, sizes of streams, and streams.
void read_prefix_code(const bytes& given) {
    prefix_code::lengths_type lengths{};
    if (given.size() < lengths.size() + 5)
        return;
    for (std::size_t i = 0; i < lengths.size(); ++i)
        lengths[i] = std::to_integer<std::uint8_t>(given[i]) % 13;
    if (!prefix_code::valid(lengths))
        return;
    const bytes streams(given.begin() + 256 + 5, given.end());
    prefix_code::sizes_type sizes{};
    std::size_t left = streams.size();
    for (std::size_t s = 0; s < sizes.size(); ++s)
        left -= sizes[s] = std::min(left, 4 * std::to_integer<std::size_t>(given[256 + s]));
    std::vector<std::uint8_t> to(16 * std::to_integer<std::size_t>(given[260]));
    static_cast<void>(kvcache::tier::prefix_decoder(prefix_code(lengths)).decode(streams, sizes, to));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0)
        return 0;
    const auto* const from = reinterpret_cast<const std::byte*>(data);
    const bytes given(from + 1, from + size);
    switch (data[0] % 4) {
    case 0:
        decode(given);
        break;
    case 1:
        decode_after_header(given);
        break;
    case 2:
        round_trip(given);
        break;
    default:
        read_prefix_code(given);
        break;
    }
    return 0;
}
