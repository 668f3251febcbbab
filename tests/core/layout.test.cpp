// SPDX-License-Identifier: MIT
#include <kvcache/core/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

kv::layer_group full(std::uint32_t layers, std::uint32_t heads, std::uint32_t dim) {
    return {.layers = layers, .kv_heads = heads, .head_dim = dim};
}
kv::layer_group window(std::uint32_t layers, std::uint32_t heads, std::uint32_t dim, std::uint32_t of) {
    return {.layers = layers, .kv_heads = heads, .head_dim = dim, .window = of};
}

} // namespace

TEST_CASE("a window keeps the pages that the next query reads") {
    for (const std::uint32_t size : {1u, 4u, 16u, 64u})
        for (std::uint32_t of = 1; of <= 130; ++of) {
            const kv::cache_layout layout{size, {window(1, 1, 1, of)}};
            for (std::size_t n = 0; n <= 260; ++n) {
                std::vector<bool> pages((n + size) / size + 1);
                for (std::size_t at = 0; at < n; ++at)
                    if (n - at < of) // the query at n reads at, with of tokens in all
                        pages[at / size] = true;
                if (n % size != 0)
                    pages[n / size] = true; // has rows for more
                std::size_t count = 0;
                for (const bool one : pages)
                    count += one;
                if (layout.bytes(0, n, 1) != count * size * 2)
                    FAIL("window of " << of << ", pages of " << size << ", " << n << " tokens");
            }
        }
}

TEST_CASE("a layout describes what models need") {
    const kv::cache_layout llama{64, {full(32, 8, 128)}}, gemma{64, {full(3, 1, 256), window(15, 1, 256, 512)}},
        oss{64, {full(12, 8, 64), window(12, 8, 64, 128)}},
        hybrid{64, {full(8, 4, 256), {.layers = 24, .state_bytes = 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)}}},
        shared{64, {full(10, 4, 256), {.layers = 20, .alias_of = 0}}};
    const auto last = [](const kv::cache_layout& of) {
        const std::string all = of.describe();
        return all.substr(all.rfind("all: "));
    };
    for (const auto* each : {&llama, &gemma, &oss, &hybrid, &shared})
        CHECK(each->check().has_value());
    CHECK(last(llama) == "all: 1024.0 MiB at 8K, 16384.0 MiB at 128K\n");
    CHECK(last(gemma) == "all: 31.5 MiB at 8K, 391.5 MiB at 128K\n");
    CHECK(last(oss) == "all: 195.0 MiB at 8K, 3075.0 MiB at 128K\n");
    CHECK(last(hybrid) == "all: 305.1 MiB at 8K, 4145.1 MiB at 128K\n");
    CHECK(shared.bytes(1, 8192, 2) == 0);
    CHECK(gemma.describe() == "pages of 64 tokens\n"
                              "full: 3 layers, a hit needs all pages, 24.0 MiB at 8K, 384.0 MiB at 128K\n"
                              "window of 512: 15 layers, a hit needs the last 511 tokens, 7.5 MiB at 8K, 7.5 MiB at "
                              "128K\n"
                              "all: 31.5 MiB at 8K, 391.5 MiB at 128K\n");
    CHECK(gemma.name() == "3 layers of 1 x 256; 15 layers of 1 x 256, window of 512");
    CHECK(hybrid.name() == "8 layers of 4 x 256; 24 layers, state of 51511296 bytes");
    CHECK(shared.name() == "10 layers of 4 x 256; 20 layers, as group 0");
    CHECK(shared.name_of(1) == "alias of full");
    CHECK(kv::cache_layout::of({2, 3, 4, 16}) == kv::cache_layout{16, {full(2, 3, 4)}});
}

TEST_CASE("a layout that cannot be used says why") {
    const auto why = [](kv::cache_layout of) {
        const auto checked = of.check();
        REQUIRE_FALSE(checked.has_value());
        CHECK(checked.error().code == kv::error_code::out_of_range);
        return checked.error().field;
    };
    CHECK(why({64, {}}) == "groups");
    CHECK(why({0, {full(1, 1, 1)}}) == "tokens");
    CHECK(why({64, {full(1, 1, 1), full(0, 1, 1)}}) == "groups[1]");
    CHECK(why({64, {full(1, 0, 1)}}) == "groups[0]");
    CHECK(why({64, {{.layers = 1, .kv_heads = 1, .head_dim = 1, .window = 2, .state_bytes = 3}}}) == "groups[0]");
    CHECK(why({64, {{.layers = 1, .kv_heads = 1, .head_dim = 1, .state_bytes = 3}}}) == "groups[0]");
    CHECK(why({64, {{.layers = 1, .alias_of = 0}}}) == "groups[0]");
    CHECK(why({64, {full(1, 1, 1), {.layers = 1, .state_bytes = 8}, {.layers = 1, .alias_of = 1}}}) == "groups[2]");
    CHECK(why({64, std::vector<kv::layer_group>(65, full(1, 1, 1))}) == "groups");
}
