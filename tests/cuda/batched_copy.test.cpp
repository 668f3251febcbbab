// SPDX-License-Identifier: MIT
#include <kvcache/cuda/batched_copy.hpp>
#include <kvcache/testing/emulated_device.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

namespace cuda = kvcache::cuda;
namespace testing = kvcache::testing;

TEST_CASE("pieces of any length are copied, and nothing next to them") {
    std::mt19937 random(1);
    std::vector<cuda::vector16> from(20000), to(20000), wanted;
    for (auto& each : from)
        for (auto& word : each.words)
            word = static_cast<std::uint32_t>(random());
    wanted = to;
    std::vector<cuda::copy_piece> pieces;
    std::size_t at = 1;
    for (const std::size_t vectors : {1u, 0u, 2047u, 2048u, 2049u, 5000u, 3u}) {
        pieces.push_back({reinterpret_cast<const std::byte*>(from.data() + at + 7),
                          reinterpret_cast<std::byte*>(to.data() + at), vectors * 16});
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at + 7), vectors,
                    wanted.begin() + static_cast<std::ptrdiff_t>(at));
        at += vectors + 1;
    }
    const auto kernel = cuda::batched_copy::make(pieces);
    CHECK(kernel.blocks() == 7 * 3);
    testing::run_emulated(kernel, 1);
    CHECK(std::equal(to.begin(), to.end(), wanted.begin(),
                     [](const auto& a, const auto& b) { return std::ranges::equal(a.words, b.words); }));
    CHECK(cuda::batched_copy::takes(pieces[0]));
    CHECK_FALSE(cuda::batched_copy::takes({pieces[0].from + 1, pieces[0].to, 16}));
    CHECK_FALSE(cuda::batched_copy::takes({pieces[0].from, pieces[0].to, 15}));
}
