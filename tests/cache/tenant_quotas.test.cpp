// SPDX-License-Identifier: MIT
#include <kvcache/cache/tenant_quotas.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// Tenants with random pages in use and evictable, and free pages.
struct pool {
    static constexpr std::size_t pages = 40;
    kv::tenant_quotas quotas{pages, 6, true};
    std::vector<std::vector<kv::page_id>> evictable;
    std::vector<kv::page_id> free;

    explicit pool(std::mt19937& dice, std::uint32_t tenants) : evictable(tenants + 1) {
        for (std::uint32_t each = 0; each < tenants; ++each)
            quotas.add(pages);
        for (std::uint32_t i = 0; i < pages; ++i) {
            const kv::page_id page{i};
            const std::uint32_t owner = static_cast<std::uint32_t>(dice() % (tenants + 1));
            if (owner == 0) {
                free.push_back(page);
                continue;
            }
            quotas.take(page, owner);
            if (dice() % 3 != 0) {
                quotas.mark_evictable(page);
                evictable[owner].push_back(page);
            }
        }
    }

    [[nodiscard]] std::size_t all_evictable() const {
        std::size_t all = 0;
        for (const auto& each : evictable)
            all += each.size();
        return all;
    }

    // Takes pages for a tenant until it gets no more. Returns their number.
    std::size_t take_all(std::uint32_t tenant) {
        for (std::size_t taken = 0;; ++taken) {
            if (free.empty()) {
                const auto from = quotas.source(tenant);
                if (!from)
                    return taken;
                REQUIRE_FALSE(evictable[*from].empty());
                const kv::page_id page = evictable[*from].back();
                evictable[*from].pop_back();
                quotas.mark_in_use(page);
                quotas.reclaim(page);
                free.push_back(page);
            }
            quotas.take(free.back(), tenant);
            free.pop_back();
        }
    }
};

} // namespace

TEST_CASE("what a fair tenant may allocate is what it gets") {
    for (unsigned seed = 0; seed < 3000; ++seed) {
        std::mt19937 dice(seed);
        const auto tenants = static_cast<std::uint32_t>(1 + dice() % 6);
        pool of(dice, tenants);
        const auto tenant = static_cast<std::uint32_t>(1 + dice() % tenants);
        const std::size_t said = of.quotas.available(tenant, of.free.size(), of.all_evictable(), 0);
        const std::size_t others_before = pool::pages - of.quotas.usage(tenant).pages - of.free.size();
        const std::size_t got = of.take_all(tenant);
        if (said != got)
            FAIL("seed " << seed << ": " << said << " said, " << got << " taken");
        // No tenant with evictable pages has more than the tenant now, but for one page.
        for (std::uint32_t each = 1; each <= tenants; ++each)
            if (each != tenant && !of.evictable[each].empty())
                CHECK(of.quotas.usage(each).pages <= of.quotas.usage(tenant).pages);
        CHECK(others_before >= pool::pages - of.quotas.usage(tenant).pages);
    }
}

TEST_CASE("a tenant that is not seen for long gives its pages") {
    kv::tenant_quotas quotas(10, 2, true);
    const std::uint32_t idle = quotas.add(10), busy = quotas.add(10);
    for (std::uint32_t i = 0; i < 4; ++i) {
        quotas.take(kv::page_id{i}, idle);
        quotas.mark_evictable(kv::page_id{i});
    }
    for (std::uint32_t i = 4; i < 10; ++i)
        quotas.take(kv::page_id{i}, busy);
    CHECK_FALSE(quotas.source(busy));
    CHECK(quotas.available(busy, 0, 4, 0) == 0);
    CHECK(quotas.source(idle) == idle);
    for (int i = 0; i < 170; ++i) {
        quotas.reclaim(kv::page_id{9});
        quotas.take(kv::page_id{9}, busy);
    }
    CHECK(quotas.source(busy) == idle);
    CHECK(quotas.available(busy, 0, 4, 0) == 4);
    quotas.see(idle);
    CHECK_FALSE(quotas.source(busy));
    CHECK(quotas.available(busy, 0, 4, 1) == 0);
}
