// SPDX-License-Identifier: MIT
#include <kvcache/recompute/all.hpp>
#include <kvcache/testing/recompute_conformance.hpp>

#include <algorithm>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

/// Reuses `ahead` tokens too many.
struct greedy {
    using role = kv::recompute_role;
    std::size_t ahead = 1;
    struct state {
        std::size_t ahead;
        [[nodiscard]] std::size_t first_computed(std::size_t hit, std::size_t total) const {
            return std::min(hit + ahead, total);
        }
    };
    [[nodiscard]] state open(kv::page_shape) const { return {ahead}; }
};

} // namespace

TEMPLATE_LIST_TEST_CASE("recompute policies pass the conformance tests", "", kv::recompute_policies) {
    CHECK(kv::testing::recompute_conformance(TestType{}, 1) == kv::testing::violations{});
}

TEST_CASE("the conformance tests of recomputing find faults") {
    using kv::testing::recompute_conformance;
    CHECK(recompute_conformance(greedy{.ahead = 0}, 1) == kv::testing::violations{"at least one token runs"});
    CHECK(recompute_conformance(greedy{.ahead = 1}, 1).size() == 2);
}
