// SPDX-License-Identifier: MIT
#include <kvcache/core/identity.hpp>
#include <kvcache/testing/role_conformance.hpp>

#include <set>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("every field of an identity changes its digest") {
    std::vector<std::string> fields;
    kv::for_each_field(kv::identity{}, [&](const char* name, const auto&) { fields.emplace_back(name); });
    const auto changed = kv::testing::changed_identities();
    REQUIRE(changed.size() == fields.size());
    std::set<kv::digest> digests{kv::digest_of(kv::identity{})};
    for (std::size_t i = 0; i < changed.size(); ++i) {
        const auto& [name, id] = changed[i];
        CHECK(name == fields[i]);
        CHECK(id != kv::identity{});
        CHECK(digests.insert(kv::digest_of(id)).second);
    }
}

TEST_CASE("text does not run over from one field into the next") {
    const kv::identity a{.adapter = "ab", .config = "c"}, b{.adapter = "a", .config = "bc"};
    CHECK(kv::digest_of(a) != kv::digest_of(b));
}
