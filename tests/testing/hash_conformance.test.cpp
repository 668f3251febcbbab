// SPDX-License-Identifier: MIT
#include <kvcache/hash/all.hpp>
#include <kvcache/testing/hash_conformance.hpp>

#include <algorithm>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

enum class fault { none, forgets_tenant, any_order, forgets_past };

/// Chained XXH3, with a fault.
template <fault Fault>
struct faulty {
    using role = kv::hash_role;
    struct state {
        kv::hash::xxh3::state inner;
        [[nodiscard]] kv::digest root() const { return inner.root(); }
        [[nodiscard]] kv::digest chain(kv::digest before, std::span<const kv::token_id> run) const {
            std::vector<kv::token_id> tokens(run.begin(), run.end());
            if (Fault == fault::any_order)
                std::ranges::sort(tokens);
            return inner.chain(Fault == fault::forgets_past ? kv::digest{} : before, tokens);
        }
    };
    [[nodiscard]] state open(kv::identity id) const {
        if (Fault == fault::forgets_tenant)
            id.tenant.clear();
        return {kv::hash::xxh3{}.open(id)};
    }
};

} // namespace

TEMPLATE_LIST_TEST_CASE("hashes pass the conformance tests", "", kv::hash_policies) {
    CHECK(kv::testing::hash_conformance(TestType{}, 1) == kv::testing::violations{});
}

TEST_CASE("the conformance tests of a hash find faults") {
    CHECK(kv::testing::hash_conformance(faulty<fault::none>{}, 1).empty());
    CHECK_FALSE(kv::testing::hash_conformance(faulty<fault::forgets_tenant>{}, 1).empty());
    CHECK_FALSE(kv::testing::hash_conformance(faulty<fault::any_order>{}, 1).empty());
    CHECK_FALSE(kv::testing::hash_conformance(faulty<fault::forgets_past>{}, 1).empty());
}
