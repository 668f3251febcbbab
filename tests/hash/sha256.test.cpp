// SPDX-License-Identifier: MIT
#include <kvcache/hash/sha256.hpp>
#include <kvcache/testing/role_conformance.hpp>

#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

struct answers {
    std::string key, root, other_root, first, second, third;
};

} // namespace

// tools/goldens/sha256.py computes the same values independently, from the description and Python's hashlib.
TEST_CASE("sha256 gives the names that another implementation computes") {
    const answers known[] = {
        {"", "9a1fe09b4ece52b8de46c9aeb697912f", "f106af4c57d40bcb2e27ebf506162300", "7becdcd85dda72560cc8fca1144056f6",
         "1cc7a64aeab925427635b27cfeedf8b1", "66f489b7755287b58dd46e37fb1542cd"},
        {"a secret", "eb57e9a7438906f1d8fab67fbadd91ae", "e3aa602f874be1273837b172e0360c41",
         "d67a524a60ad16389e097089562175ea", "86b3e0f7c2a14e9fa3ab8342063210ce", "89e60d6f056c9c167a5d0a6783ee699e"},
        {std::string(100, '\0'), "f538d5b0e836d781eb511972416e6109", "d5354bb5bd594c3b3c10164b51cf328b",
         "534641a35f5b910386228d6c69e40a8f", "82fa7d29decd676ad2dc1d306c4a8ad4", "296edff22cc20dc4b5789e09369e8941"}};
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
        const auto state = kv::hash::sha256{.key = a.key}.open({.numeric_contract = 1, .format = 1});
        CHECK(to_string(state.root()) == a.root);
        auto renewed = other;
        renewed.numeric_contract = 1;
        renewed.format = 1;
        CHECK(to_string(kv::hash::sha256{.key = a.key}.open(renewed).root()) == a.other_root);
        const auto first = state.chain(state.root(), three), second = state.chain(first, many);
        CHECK(to_string(first) == a.first);
        CHECK(to_string(second) == a.second);
        CHECK(to_string(state.chain(second, {})) == a.third);
    }
}

TEST_CASE("a cryptographic hash passes the conformance tests") {
    CHECK(kv::testing::hash_conformance(kv::hash::sha256{}, 3).empty());
}

TEST_CASE("a keyed hash passes the conformance tests, and another key gives other names") {
    CHECK(kv::testing::hash_conformance(kv::hash::sha256{.key = "k"}, 4).empty());
    CHECK(kv::hash::sha256{.key = "k"}.open({}).root() != kv::hash::sha256{.key = "l"}.open({}).root());
    CHECK(kv::hash::sha256{.key = "k"}.open({}).chain({}, {}) != kv::hash::sha256{}.open({}).chain({}, {}));
}
