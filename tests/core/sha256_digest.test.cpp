// SPDX-License-Identifier: MIT
#include <kvcache/core/digest.hpp>
#include <kvcache/core/sha256_builder.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
    return kv::text_bytes(text);
}

std::string sha(std::string_view text) {
    return to_string(kv::sha256_builder().bytes(bytes_of(text)).finish());
}

std::string hmac(std::string_view key, std::string_view text) {
    return to_string(kv::hmac_builder(bytes_of(key)).bytes(bytes_of(text)).finish());
}

} // namespace

TEST_CASE("SHA-256 gives the answers of FIPS 180-4 and of Python's hashlib") {
    CHECK(sha("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(sha(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on how the bytes are given") {
    std::string text;
    for (int i = 0; i < 300; ++i)
        text += static_cast<char>(i * 7);
    for (std::size_t length = 0; length <= text.size(); ++length) {
        const std::string_view whole(text.data(), length);
        kv::sha256_builder parts;
        for (std::size_t at = 0, step = 1; at < length; at += step, step = step % 70 + 1)
            parts.bytes(bytes_of(whole.substr(at, step)));
        CHECK(to_string(parts.finish()) == sha(whole));
    }
}

// RFC 4231, cases 1, 2, 6 and 7.
TEST_CASE("HMAC-SHA-256 gives the answers of RFC 4231") {
    CHECK(hmac(std::string(20, '\x0b'), "Hi There") ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(hmac("Jefe", "what do ya want for nothing?") ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    const std::string longer(131, '\xaa');
    CHECK(hmac(longer, "Test Using Larger Than Block-Size Key - Hash Key First") ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    CHECK(hmac(longer, "This is a test using a larger than block-size key and a larger than block-size data. The key "
                       "needs to be hashed before being used by the HMAC algorithm.") ==
          "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("equal digests are equal in constant time, and every differing bit shows") {
    const kv::sha256_digest one = kv::sha256_builder().text("one").finish();
    CHECK(same_in_constant_time(one, one));
    for (std::size_t bit = 0; bit < 256; ++bit) {
        kv::sha256_digest other = one;
        other.bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        CHECK_FALSE(same_in_constant_time(one, other));
        CHECK(other != one);
    }
}
