// SPDX-License-Identifier: MIT
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/row_major.hpp>

#include <set>
#include <string>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

template <class Codec>
kv::identity identity_with(Codec codec) {
    return kv::make_cache({{.layers = 2, .kv_heads = 3, .head_dim = 8, .tokens = 16}, {.bytes = 1 << 16}}, codec).id();
}

} // namespace

TEST_CASE("an identity names the format and the layout of a page") {
    CHECK(identity_with(kv::codec::f32{}).layout == "key tiles of 16, value rows; 2 layers, 3 KV heads of 8");
    const auto nhd = identity_with(kv::codec::nhd_bf16{}), hnd = identity_with(kv::codec::hnd_bf16{});
    CHECK(nhd.codec == "row-major bf16");
    CHECK(nhd.layout == "keys, values: (tokens, kv_heads, head_dim); 2 layers, 3 KV heads of 8");
    CHECK(hnd.codec == nhd.codec);
    CHECK(hnd.layout == "keys, values: (kv_heads, tokens, head_dim); 2 layers, 3 KV heads of 8");
}

TEST_CASE("row-major codecs have different identities") {
    std::set<std::string> digests;
    const auto add = [&](auto codec) { digests.insert(to_string(kv::digest_of(identity_with(codec)))); };
    add(kv::codec::f32{});
    add(kv::codec::nhd_f32{});
    add(kv::codec::nhd_f16{});
    add(kv::codec::nhd_bf16{});
    add(kv::codec::hnd_f32{});
    add(kv::codec::hnd_f16{});
    add(kv::codec::hnd_bf16{});
    CHECK(digests.size() == 7);
}
