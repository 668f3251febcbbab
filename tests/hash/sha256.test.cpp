// SPDX-License-Identifier: MIT
#include <kvcache/hash/crypto.hpp>
#include <kvcache/testing/hash_laws.hpp>

#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

struct answers {
    std::string key, root, other_root, first, second, third;
};

} // namespace

// tools/goldens/sha256.py computes the same from the description alone, with Python's hashlib.
TEST_CASE("sha256 gives the names that another implementation computes") {
    const answers known[] = {
        {"", "53e7837a48e89b029af73ba661392a68", "a06707c5f3b3c40ad4bfb447babe9e86", "7df432b0f8cd20724f6acd64ed83a32b",
         "8a63cc32df3f15bdef86bcbbe0e45c4d", "a500e6753183343ac8168e162c0d1463"},
        {"a secret", "1b89fe727eeb114f938595d7c00d0b58", "9315831f9da0aeacb73831082d88baaf",
         "a25379b5a61e427ca14064a8f468b635", "4d320e47d975ea6bec89229e1d45cf12", "3cddc177f998d05b084b84328d598af1"},
        {std::string(100, '\0'), "3d6c6d262bd2e99d95e8bdf39b27e77d", "c0d237ce5c07b1fea72fcbdcb52698ea",
         "e46115d0b7635fe25db0d4ac0cc94666", "0b6249e59ca44c82896ff368d6187d59", "a4cdd247e7d1bb448f978550b55135be"}};
    const kv::identity other{.weights = {.low = 0x08090a0b0c0d0e0f, .high = 0x0001020304050607},
                             .config = "llama",
                             .page_tokens = 64,
                             .tenant = "alice"};
    std::vector<kv::token_id> three, many;
    for (int token = 1; token <= 3; ++token)
        three.push_back(kv::token_id{token});
    for (int token = -8; token < 56; ++token)
        many.push_back(kv::token_id{token});
    for (const answers& a : known) {
        const auto state = kv::sha256{.key = a.key}.open({.numeric_contract = 1});
        CHECK(to_string(state.root()) == a.root);
        auto renewed = other;
        renewed.numeric_contract = 1;
        CHECK(to_string(kv::sha256{.key = a.key}.open(renewed).root()) == a.other_root);
        const auto first = state.chain(state.root(), three), second = state.chain(first, many);
        CHECK(to_string(first) == a.first);
        CHECK(to_string(second) == a.second);
        CHECK(to_string(state.chain(second, {})) == a.third);
    }
}

TEMPLATE_LIST_TEST_CASE("cryptographic hashes keep the laws", "", kv::all_hash_policies) {
    CHECK(kv::testing::hash_laws(TestType{}, 3).empty());
}

TEST_CASE("a keyed hash keeps the laws, and another key gives other names") {
    CHECK(kv::testing::hash_laws(kv::sha256{.key = "k"}, 4).empty());
    CHECK(kv::sha256{.key = "k"}.open({}).root() != kv::sha256{.key = "l"}.open({}).root());
    CHECK(kv::sha256{.key = "k"}.open({}).chain({}, {}) != kv::sha256{}.open({}).chain({}, {}));
}
