// SPDX-License-Identifier: MIT
#include "../../bench/replay/bounds.hpp"

#include <kvcache/eviction/all.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "../../bench/replay/prefix_replay.hpp"
#include "random_tries.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace replay_tests;

namespace {

// The maximum of hits over all choices, by trying every set of blocks that could stay after each request: blocks
// present or new, parents before children, at most `capacity`.
std::size_t most_hits(const std::vector<bench::prefix_request>& requests, std::size_t capacity) {
    std::map<std::set<std::uint64_t>, std::size_t> reached{{{}, 0}};
    std::map<std::uint64_t, std::uint64_t> parents;
    for (const auto& request : requests) {
        for (std::size_t i = 0; i < request.blocks.size(); ++i)
            parents[request.blocks[i]] = i == 0 ? 0 : request.blocks[i - 1];
        std::map<std::set<std::uint64_t>, std::size_t> after;
        for (const auto& [present, hits_before] : reached) {
            std::size_t hits = hits_before;
            for (std::size_t i = 0; i < request.blocks.size() && present.contains(request.blocks[i]); ++i)
                ++hits;
            std::vector<std::uint64_t> could(present.begin(), present.end());
            for (const std::uint64_t block : request.blocks)
                if (!present.contains(block))
                    could.push_back(block);
            for (std::uint32_t bits = 0; bits < 1u << could.size(); ++bits) {
                std::set<std::uint64_t> stays;
                for (std::size_t i = 0; i < could.size(); ++i)
                    if ((bits >> i & 1) != 0)
                        stays.insert(could[i]);
                const bool whole = std::ranges::all_of(
                    stays, [&](std::uint64_t b) { return parents[b] == 0 || stays.contains(parents[b]); });
                if (whole && stays.size() <= capacity)
                    after[stays] = std::max(after[stays], hits);
            }
        }
        reached = std::move(after);
    }
    std::size_t most = 0;
    for (const auto& [present, hits] : reached)
        most = std::max(most, hits);
    return most;
}

} // namespace

TEST_CASE("the clairvoyant hits as much as any choice could") {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        const std::size_t capacity = 1 + seed % 3;
        INFO("seed " << seed << ", capacity " << capacity);
        const auto requests = random_requests(seed, 12, 3);
        const auto next = next_of(requests);
        bench::prefix_clairvoyant bound(capacity, {});
        for (std::size_t i = 0; i < requests.size(); ++i)
            bound.run(requests[i], next[i]);
        CHECK(bound.counts().hits == most_hits(requests, capacity));
    }
}

TEMPLATE_LIST_TEST_CASE("no policy hits more than the clairvoyant", "", kv::eviction_policies) {
    for (std::uint64_t seed = 200; seed < 220; ++seed) {
        const std::size_t capacity = 1 + seed % 20;
        INFO("seed " << seed << ", capacity " << capacity);
        const auto requests = random_requests(seed, 200, 7);
        const auto next = next_of(requests);
        bench::prefix_clairvoyant bound(capacity, {});
        bench::prefix_replay<TestType> replay({}, capacity, 64, {});
        for (std::size_t i = 0; i < requests.size(); ++i) {
            bound.run(requests[i], next[i]);
            replay.run(requests[i]);
        }
        CHECK(replay.counts().hits <= bound.counts().hits);
        CHECK(replay.counts().tokens == bound.counts().tokens);
    }
}
