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
        {"", "03ec8011c6f9a00ebceca494af9de212", "ea6f687d738f0b4a16490c43b58d8eb1", "9126baee7bb5a3e50d554e535bdaa7b9",
         "5ff1399fd26b57a60222e6e83e396a13", "359248cbc0e21ca5786b3f82d3b68865"},
        {"a secret", "511996ea7456d09d843b1c98a437459a", "d8d5096fdead411460ed1a1358a64361",
         "96de20984b188577366978e76638c838", "eb730ac7ad8b8708d9629f6591fac007", "30238d8905caa0875bd2c59136e70770"},
        {std::string(100, '\0'), "8cd9f40aa8ddaeacd05f53c0816a087d", "9dfe1bab426a0fae4e8f9aede04aba23",
         "8e5d9e77f56ed72fea19110191af3ff7", "29f8a097c2bcf64aae46a514caf8fe59", "f38da70e4b021e603c581ce198bb4ff9"}};
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
