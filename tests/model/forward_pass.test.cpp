// SPDX-License-Identifier: MIT
#include <kvcache/cache.hpp>
#include <kvcache/model/forward_pass.hpp>

#include <array>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a batch whose leases are of two caches is refused") {
    const kv::page_shape shape{1, 1, 16, 16};
    auto first = kv::make_cache({shape, {.bytes = 1u << 16}}), second = kv::make_cache({shape, {.bytes = 1u << 16}});
    auto a = first.open(), b = second.open();
    auto in_first = first.reserve(a, 1), in_second = second.reserve(b, 1);
    REQUIRE(in_first.has_value());
    REQUIRE(in_second.has_value());
    using lease = decltype(first)::lease;
    const std::vector<kv::token_id> tokens(1);
    const std::vector<float> row(16);
    std::vector<float> out(16);
    const kv::attention_kind kind{.shape = {.head_dim = 16},
                                  .rows = {.data = row.data(), .rotations = row.data(), .out = out.data()}};
    kv::thread_pool threads;
    kv::host_attention<lease> attention;
    const std::array mixed{kv::batch_slice<lease>{&*in_first, 0, tokens},
                           kv::batch_slice<lease>{&*in_second, 0, tokens}};
    CHECK_THROWS_AS(attention.plan({&kind, 1}, mixed, threads), kv::contract_violation);
    CHECK_NOTHROW(attention.plan({&kind, 1}, std::span(mixed).first(1), threads));
}
