// SPDX-License-Identifier: MIT
#include <kvcache/hash/all.hpp>
#include <kvcache/locking/all.hpp>
#include <kvcache/recompute/all.hpp>
#include <kvcache/storage/all.hpp>
#include <kvcache/testing/role_conformance.hpp>

#include <algorithm>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

/// One block for all pages, at a distance of `stride` bytes, `offset` bytes off a cache line.
struct packed {
    using role = kv::storage_role;
    bool overlap = false;
    std::size_t offset = 0;
    struct state {
        std::size_t page_bytes;
        std::size_t stride;
        std::size_t offset;
        kv::aligned_vector<std::byte> block;
        [[nodiscard]] bool acquire(kv::page_id) { return true; }
        void release(kv::page_id) noexcept {}
        [[nodiscard]] std::span<std::byte> bytes(kv::page_id page) const {
            return {const_cast<std::byte*>(block.data()) + offset + index_of(page) * stride, page_bytes};
        }
    };
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        const std::size_t stride = (page_bytes + 63) / 64 * 64 - (overlap && page_bytes > 64 ? 64 : 0);
        return {page_bytes, stride, offset, kv::aligned_vector<std::byte>(pages * stride + page_bytes + offset)};
    }
};

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

TEMPLATE_LIST_TEST_CASE("storage policies pass the conformance tests", "", kv::storage_policies) {
    CHECK(kv::testing::storage_conformance(TestType{}, 1) == kv::testing::violations{});
}

TEST_CASE("the conformance tests of storage find faults") {
    CHECK(kv::testing::storage_conformance(packed{}, 1).empty());
    CHECK_FALSE(kv::testing::storage_conformance(packed{.overlap = true}, 1).empty());
    CHECK_FALSE(kv::testing::storage_conformance(packed{.offset = 4}, 1).empty());
}

TEMPLATE_LIST_TEST_CASE("hashes pass the conformance tests", "", kv::hash_policies) {
    CHECK(kv::testing::hash_conformance(TestType{}, 1) == kv::testing::violations{});
}

TEST_CASE("the conformance tests of a hash find faults") {
    CHECK(kv::testing::hash_conformance(faulty<fault::none>{}, 1).empty());
    CHECK_FALSE(kv::testing::hash_conformance(faulty<fault::forgets_tenant>{}, 1).empty());
    CHECK_FALSE(kv::testing::hash_conformance(faulty<fault::any_order>{}, 1).empty());
    CHECK_FALSE(kv::testing::hash_conformance(faulty<fault::forgets_past>{}, 1).empty());
}

TEST_CASE("a mutexed cache is used by one thread at a time") {
    CHECK(kv::testing::locking_conformance(kv::locking::mutex{}, 4) == kv::testing::violations{});
}

TEST_CASE("an unlocked cache is for one thread") {
    CHECK(kv::testing::locking_conformance(kv::locking::none{}, 1) == kv::testing::violations{});
}

TEMPLATE_LIST_TEST_CASE("recompute policies pass the conformance tests", "", kv::recompute_policies) {
    CHECK(kv::testing::recompute_conformance(TestType{}, 1) == kv::testing::violations{});
}

TEST_CASE("the conformance tests of recomputing find faults") {
    using kv::testing::recompute_conformance;
    CHECK(recompute_conformance(greedy{.ahead = 0}, 1) == kv::testing::violations{"at least one token runs"});
    CHECK(recompute_conformance(greedy{.ahead = 1}, 1).size() == 2);
}
