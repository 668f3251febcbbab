// SPDX-License-Identifier: MIT
#include <kvcache/core/digest.hpp>
#include <kvcache/tier/shuffled_huffman.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using code = kv::tier::shuffled_huffman;
using bytes = std::vector<std::byte>;

enum class kind { random, zero, float32, bfloat16, int8, mixed };

// The same on every machine.
bytes some(kind of, std::size_t size, unsigned seed) {
    std::mt19937 dice(seed);
    bytes made(size);
    const auto normal = [&] { // nearly: a sum of four uniform numbers, exact in float32
        std::int32_t sum = 0;
        for (int i = 0; i < 4; ++i)
            sum += static_cast<std::int32_t>(dice() % 4096) - 2048;
        return sum;
    };
    for (std::size_t i = 0; i < size; ++i)
        if (of == kind::random || (of == kind::mixed && i / 5000 % 2 == 0))
            made[i] = static_cast<std::byte>(dice());
        else if (of == kind::int8)
            made[i] = static_cast<std::byte>(normal() / 64);
    if (of == kind::float32 || of == kind::bfloat16 || of == kind::mixed)
        for (std::size_t i = 0; i + 4 <= size; i += of == kind::bfloat16 ? 2 : 4) {
            if (of == kind::mixed && i / 5000 % 2 == 0)
                continue;
            const float value = static_cast<float>(normal()) * 1.1f;
            const std::uint32_t bits = kv::bit_cast<std::uint32_t>(value) ^ (dice() & 0xFF);
            for (std::size_t k = 0; k < 4; ++k)
                made[i + k] = static_cast<std::byte>((of == kind::bfloat16 ? bits >> 16 : bits) >> (8 * k) & 0xFF);
        }
    return made;
}

double times_smaller(const bytes& record) {
    return static_cast<double>(record.size()) / static_cast<double>(code::encode(record).size());
}

} // namespace

TEST_CASE("records of any bytes and any size come back, and none grows by more than a byte a plane") {
    for (const kind of : {kind::random, kind::zero, kind::float32, kind::bfloat16, kind::int8, kind::mixed})
        for (const std::size_t size :
             {0u,  1u,   2u,    3u,    4u,     5u,      15u,     16u,     17u,     31u,     63u,    64u,
              65u, 255u, 1000u, 4096u, 50001u, 131071u, 131072u, 131073u, 131078u, 262144u, 300003u}) {
            INFO(static_cast<int>(of) << ", " << size << " bytes");
            const bytes record = some(of, size, static_cast<unsigned>(size) + 1);
            const bytes made = code::encode(record);
            bytes back(7, std::byte{1});
            REQUIRE(code::decode(made, back));
            REQUIRE(back == record);
            REQUIRE(made.size() <= 16 + size + 4 * (size / 131072 + 1));
        }
}

TEST_CASE("numbers of each width are found and made smaller") {
    CHECK(times_smaller(some(kind::float32, 400000, 1)) > 1.15);
    CHECK(times_smaller(some(kind::bfloat16, 400000, 1)) > 1.40);
    CHECK(times_smaller(some(kind::int8, 400000, 1)) > 1.08);
    CHECK(times_smaller(some(kind::zero, 400000, 1)) > 7.0);
}

TEST_CASE("the stored form does not change") {
    kv::digest_builder all;
    for (const kind of : {kind::random, kind::zero, kind::float32, kind::bfloat16, kind::int8, kind::mixed})
        all.bytes(code::encode(some(of, 140000, 5)));
    CHECK(to_string(all.finish()) == "f01c4a27662246a6f626798f335e06ba");
}

TEST_CASE("a damaged code is refused or has other bytes, and never more than eight for one") {
    const unsigned seed = 4;
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    std::size_t refused = 0;
    for (int round = 0; round < 3000; ++round) {
        const auto of = static_cast<kind>(dice() % 6);
        bytes made = code::encode(some(of, dice() % 3000, static_cast<unsigned>(dice())));
        switch (dice() % 4) {
        case 0:
            made.resize(dice() % (made.size() + 1));
            break;
        case 1:
            made.resize(made.size() + 1 + dice() % 20);
            break;
        default:
            for (std::size_t n = 1 + dice() % 4; n > 0; --n)
                made[dice() % 4 == 0 ? dice() % 32 % made.size() : dice() % made.size()] ^=
                    static_cast<std::byte>(1u << dice() % 8);
        }
        const bytes exact(made); // an allocation of its very size
        bytes back;
        const bool taken = code::decode(exact, back);
        refused += !taken;
        REQUIRE(back.size() <= 8 * exact.size() + 7);
    }
    CHECK(refused > 1000);
}
