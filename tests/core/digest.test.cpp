// SPDX-License-Identifier: MIT
#include <kvcache/core/digest.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

[[nodiscard]] std::string of(std::string_view bytes) {
    return to_string(kv::digest_builder{}.bytes(kv::text_bytes(bytes)).finish());
}

} // namespace

TEST_CASE("digests are XXH3-128") {
    CHECK(of("") == "99aa06d3014798d86001c324468d497f"); // the output of xxhsum -H2
    CHECK(of("kvcache") == "bb9e51e629cd3bf3657e6b84f18c69eb");
    CHECK(of(std::string(10000, 'x')) == "0bbccd47483750b1cb763e2ccd065fab");
}

TEST_CASE("numbers go in lowest byte first and texts with their length") {
    kv::digest_builder numbers, bytes;
    const std::byte little[8] = {std::byte{2}, std::byte{1}};
    CHECK(numbers.number(0x0102).finish() == bytes.bytes(little).finish());
    kv::digest_builder whole, parts;
    CHECK(whole.text("ab").text("c").finish() != parts.text("a").text("bc").finish());
    const kv::digest d{1, 2};
    kv::digest_builder nested, by_hand;
    CHECK(nested.nested(d).finish() == by_hand.number(1).number(2).finish());
}

TEST_CASE("a digest does not depend on how its bytes come in pieces") {
    const std::string text(1000, 'y');
    const auto bytes = kv::text_bytes(text);
    for (const std::size_t cut : {0u, 1u, 63u, 64u, 256u, 999u}) {
        kv::digest_builder builder;
        builder.bytes(bytes.first(cut)).bytes(bytes.subspan(cut));
        const kv::digest_builder copy = builder;
        CHECK(to_string(builder.finish()) == of(text));
        CHECK(copy.finish() == builder.finish());
    }
}
