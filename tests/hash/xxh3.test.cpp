// SPDX-License-Identifier: MIT
#include <kvcache/hash/xxh3.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a chain of runs has golden names") {
    const auto state = kv::hash::xxh3{}.open({});
    CHECK(state.root() == kv::digest_of(kv::identity{}));
    const kv::token_id run[] = {kv::token_id{1}, kv::token_id{2}, kv::token_id{3}};
    const auto one = state.chain({}, run);
    CHECK(kv::to_string(one) == "b675eebc5120b9e57971b3b64856e72d");
    CHECK(kv::to_string(state.chain(one, run)) == "2db93c6b9cf7b0a321de246248562cb2");
}
