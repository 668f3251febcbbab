// SPDX-License-Identifier: MIT
#include <kvcache/cache/basic_cache.hpp>

#include <numeric>
#include <utility>
#include <vector>

#include "cache/matching.hpp"
#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

// The pages that a reservation would take now.
template <class Cache>
std::size_t needed_by(Cache& cache, typename Cache::sequence& to, std::size_t rows) {
    return cache.core().sequences().demand(to.state_in(cache.core()), rows, {}).pages;
}

constexpr kv::page_shape small{1, 2, 16, 16};
constexpr kv::cache_limits pages(std::size_t n) {
    return {n * sizeof(float) * 2 * 2 * 16 * 16};
}
using cache_type = kv::cache<>;

std::size_t available(const cache_type& cache) {
    return cache.stats().free + cache.stats().evictable;
}

} // namespace

TEST_CASE("a reservation takes the pages that were foretold, and is refused for no others") {
    const auto seed = GENERATE(1u, 2u, 3u, 4u);
    CAPTURE(seed);
    seeded draw(seed);
    auto cache = kv::make_cache({small, pages(20)});
    std::vector<cache_type::sequence> all;
    for (int step = 0; step < 2000; ++step) {
        if (all.size() < 6 && draw(3) == 0) {
            const std::size_t from = draw(all.size() + 1);
            all.push_back(from == all.size() ? cache.open() : all[from].fork(all[from].size()));
        }
        if (all.empty())
            continue;
        auto& one = all[draw(all.size())];
        const std::size_t rows = draw(50), before = available(cache), needed = needed_by(cache, one, rows);
        {
            auto lease = cache.reserve(one, rows);
            REQUIRE(bool(lease) == (needed <= before));
            CHECK(available(cache) == before - (lease ? needed : 0));
            if (lease && draw(2) == 0) {
                lease->declare_written();
                lease->commit(
                    std::vector<kv::token_id>(draw(rows + 1), kv::token_id{static_cast<std::int32_t>(draw(3))}));
            }
        }
        if (draw(4) == 0)
            all.erase(all.begin() + static_cast<std::ptrdiff_t>(draw(all.size())));
    }
    CHECK(cache.check());
}

TEST_CASE("rows are reserved for a whole batch or for none of it") {
    const auto seed = GENERATE(1u, 2u, 3u, 4u);
    CAPTURE(seed);
    seeded draw(seed);
    auto cache = kv::make_cache({small, pages(20)});
    std::size_t refused = 0;
    for (int step = 0; step < 500; ++step) {
        std::vector<cache_type::sequence> all;
        std::vector<kv::reservation<cache_type>> batch;
        for (std::size_t n = 1 + draw(5); n > 0; --n) {
            auto found = match_in(cache, counted(static_cast<std::int32_t>(1000 * draw(4)), 40));
            const std::size_t known = found.tokens();
            all.push_back(open_at(cache, std::move(found), {known, 0}));
        }
        for (auto& each : all)
            batch.push_back({&each, draw(90)});
        const std::size_t needed =
            std::accumulate(batch.begin(), batch.end(), std::size_t{0}, [&](std::size_t sum, const auto& each) {
                return sum + needed_by(cache, *each.to, each.rows);
            });
        const auto in_use = cache.stats().in_use, room = available(cache);
        auto leases = cache.reserve(batch);
        REQUIRE(bool(leases) == (needed <= room));
        if (leases) {
            REQUIRE(leases->size() == batch.size());
            CHECK(cache.stats().in_use == in_use + needed);
            for (std::size_t i = 0; i < batch.size(); ++i) {
                CHECK((*leases)[i].rows() == batch[i].rows);
                (*leases)[i].declare_written();
                if (draw(2) == 0)
                    (*leases)[i].commit(
                        counted(static_cast<std::int32_t>(1000 * draw(4) + all[i].size()), batch[i].rows));
            }
        } else {
            ++refused;
            CHECK(cache.stats().in_use == in_use);
            CHECK(leases.error().code == kv::error_code::out_of_memory);
            CHECK(leases.error().message.find("of the batch: ") != std::string::npos);
        }
    }
    CHECK(refused > 0);
    CHECK(refused < 500);
    CHECK(cache.check());
}
