// SPDX-License-Identifier: MIT
// The heap memory of a cache of quantized pages for 4,096 tokens: pages, residual rows, table and all bookkeeping.
#include <kvcache/cache/any_codec.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/residual_page.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 33)

namespace kv = kvcache;

namespace {

using four_bits = kv::any_codec<
    std::tuple<kv::codec::int4, kv::codec::hadamard<kv::codec::int4>, kv::codec::codebook<4>, kv::codec::codebook<3>>>;

constexpr std::size_t tokens = 4096;

std::size_t taken() {
    const auto now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

// The heap memory that a cache takes for 4,096 tokens.
std::size_t bytes_of_4096_tokens(const kv::page_shape& shape, const four_bits& codec) {
    const std::vector<float> row(std::size_t{shape.kv_heads} * shape.head_dim, 1.0f);
    const std::size_t before = taken(), page = codec.open(shape).page_bytes();
    auto cache = kv::make_cache(
        {shape, {.bytes = (tokens / shape.tokens + 1) * page + kv::codec::residual_page::bytes_for(shape)}}, codec);
    auto sequence = cache.open();
    for (std::size_t first = 0; first < tokens; first += shape.tokens) {
        auto lease = cache.reserve(sequence, shape.tokens);
        REQUIRE(lease.has_value());
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
            for (std::size_t r = 0; r < shape.tokens; ++r)
                lease->write(kv::layer_id{layer}, r, row, row);
        std::vector<kv::token_id> ids;
        for (std::size_t r = 0; r < shape.tokens; ++r)
            ids.push_back(static_cast<kv::token_id>(first + r));
        lease->commit(ids);
    }
    const std::size_t after = taken();
    REQUIRE(sequence.size() == tokens);
    CHECK(cache.stats().residual_pages == 0);
    return after - before;
}

} // namespace

TEST_CASE("4,096 tokens in 4.5 bits a number take a seventh of their float32 numbers, everything counted") {
    if (taken() == 0)
        return; // an allocator that does not report its allocations
    const kv::page_shape shape{.layers = 8, .kv_heads = 2, .head_dim = 128, .tokens = 64};
    const std::size_t numbers = tokens * shape.layers * shape.kv_heads * shape.head_dim * 2;
    { // allocates what a process allocates once
        auto cache = kv::make_cache({shape, {.pages = 32}}, *four_bits::named("int4"));
        auto sequence = cache.open();
        REQUIRE(cache.reserve(sequence, shape.tokens).has_value());
    }
    for (const char* name : {"int4", "hadamard<int4>", "codebook<4>", "codebook<3>"}) {
        CAPTURE(name);
        const auto codec = four_bits::named(name);
        REQUIRE(codec.has_value());
        // Freed memory that the allocator keeps counts as taken until it is used again, so the least of three counts.
        std::size_t least = bytes_of_4096_tokens(shape, *codec);
        for (int again = 0; again < 2; ++again)
            least = std::min(least, bytes_of_4096_tokens(shape, *codec));
        CHECK(static_cast<double>(numbers * sizeof(float)) >= 7.0 * static_cast<double>(least));
    }
}

#endif
#endif
