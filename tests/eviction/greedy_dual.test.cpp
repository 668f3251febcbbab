// SPDX-License-Identifier: MIT
#include <kvcache/eviction/greedy_dual.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a slot heap has the lowest rank first, and of one rank the oldest") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::size_t slots = 30;
        kv::eviction::slot_heap heap(slots);
        std::map<kv::slot_id, std::pair<double, int>> plain;
        for (int round = 0; round < 4000; ++round) {
            const kv::slot_id slot{static_cast<std::uint32_t>(choose.below(slots))};
            REQUIRE(heap.contains(slot) == plain.contains(slot));
            if (plain.contains(slot) && choose.one_in(3)) {
                heap.remove(slot);
                plain.erase(slot);
            } else {
                const auto rank = static_cast<double>(choose.below(10));
                heap.rank(slot, rank);
                plain[slot] = {rank, round};
            }
            REQUIRE(heap.size() == plain.size());
            if (plain.empty())
                continue;
            const auto lowest = std::min_element(plain.begin(), plain.end(),
                                                 [](const auto& a, const auto& b) { return a.second < b.second; });
            REQUIRE(heap.at(0) == lowest->first);
            REQUIRE(heap.rank(heap.at(0)) == lowest->second.first);
        }
    }
}

TEST_CASE("a slot set aside keeps its rank, and is not a victim") {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        CAPTURE(seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::uint32_t slots = 12;
        kv::eviction::slot_heap heap(slots);
        struct known {
            double rank = 0.0;
            int turn = 0;
            bool present = false, aside = false;
        };
        std::vector<known> plain(slots);
        for (int round = 0; round < 600; ++round) {
            const auto at = static_cast<std::uint32_t>(choose.below(slots));
            const kv::slot_id slot{at};
            if (!plain[at].present || choose.one_in(3)) {
                const auto rank = static_cast<double>(choose.below(5));
                heap.rank(slot, rank);
                plain[at] = {rank, round, true, plain[at].present && plain[at].aside};
            } else if (choose.one_in(4)) {
                heap.remove(slot);
                plain[at] = {};
            } else if (choose.one_in(2)) {
                heap.set_aside(slot);
                plain[at].aside = true;
            } else {
                heap.put_back(slot);
                plain[at].aside = false;
            }
            std::size_t size = 0;
            std::optional<std::uint32_t> lowest;
            for (std::uint32_t i = 0; i < slots; ++i) {
                REQUIRE(heap.contains(kv::slot_id{i}) == plain[i].present);
                if (!plain[i].present || plain[i].aside)
                    continue;
                ++size;
                if (!lowest ||
                    std::pair(plain[i].rank, plain[i].turn) < std::pair(plain[*lowest].rank, plain[*lowest].turn))
                    lowest = i;
            }
            REQUIRE(heap.size() == size);
            if (lowest)
                REQUIRE(heap.at(0) == kv::slot_id{*lowest});
        }
    }
}

namespace {

// Entries are worth what they cost.
class costs {
public:
    explicit costs(std::size_t slots) : costs_(slots) {}
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) { costs_[index_of(slot)] = newcomer.cost; }
    void touch(kv::slot_id) {}
    [[nodiscard]] double operator()(kv::slot_id slot) const { return costs_[index_of(slot)]; }

private:
    std::vector<double> costs_;
};

constexpr auto anyone = [](kv::slot_id) { return true; };

} // namespace

TEST_CASE("worth that is not renewed loses to newcomers in time") {
    kv::eviction::greedy_dual<costs> ranks(3);
    ranks.admit(kv::slot_id{0}, {.cost = 5.5});
    for (int newcomer = 0; newcomer < 5; ++newcomer) {
        ranks.admit(kv::slot_id{1}, {.cost = 1.0});
        REQUIRE(ranks.victim(anyone) == kv::slot_id{1});
        ranks.evict(kv::slot_id{1});
    }
    ranks.admit(kv::slot_id{1}, {.cost = 1.0});
    CHECK(ranks.victim(anyone) == kv::slot_id{0});
    ranks.erase(kv::slot_id{0}); // removed, not evicted: the clock does not move
    ranks.admit(kv::slot_id{2}, {.cost = 1.0});
    CHECK(ranks.victim(anyone) == kv::slot_id{1});
}

TEST_CASE("a valuable entry is found after any number of cheap ones that may not be evicted") {
    kv::eviction::greedy_dual<costs> ranks(4);
    for (std::uint32_t slot = 0; slot < 3; ++slot)
        ranks.admit(kv::slot_id{slot}, {.cost = 0.0});
    ranks.admit(kv::slot_id{3}, {.cost = 1e9});
    CHECK(ranks.victim([](kv::slot_id slot) { return slot == kv::slot_id{3}; }) == kv::slot_id{3});
    CHECK_FALSE(ranks.victim([](kv::slot_id) { return false; }));
}
