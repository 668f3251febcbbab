// SPDX-License-Identifier: MIT
#include "../../bench/replay/prefix_replay.hpp"

#include <kvcache/eviction/all.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../../bench/replay/bounds.hpp"
#include "random_tries.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace replay_tests;

namespace {

/// LRU over a trie, by definition. Each block has the time of its last use; the deeper blocks of a request count as
/// used before the shallower ones. The victim is the oldest childless block outside the request.
class naive_lru {
public:
    explicit naive_lru(std::size_t capacity) : capacity_(capacity) {}

    std::size_t run(const bench::prefix_request& request) {
        std::size_t hits = 0;
        while (hits < request.blocks.size() && used_.contains(request.blocks[hits]))
            ++hits;
        for (std::size_t depth = hits; depth < request.blocks.size(); ++depth) {
            used_[request.blocks[depth]] = 0;
            parent_[request.blocks[depth]] = depth == 0 ? 0 : request.blocks[depth - 1];
        }
        // First evicts blocks that the request does not use, then the request's own last blocks.
        while (used_.size() > capacity_ && drop_oldest(request.blocks)) {
        }
        for (std::size_t kept = request.blocks.size(); used_.size() > capacity_; --kept)
            used_.erase(request.blocks[kept - 1]);
        for (std::size_t depth = request.blocks.size(); depth > 0; --depth)
            if (used_.contains(request.blocks[depth - 1]))
                used_[request.blocks[depth - 1]] = ++now_;
        return hits;
    }

    [[nodiscard]] bool contains(std::uint64_t block) const { return used_.contains(block); }

private:
    bool drop_oldest(const std::vector<std::uint64_t>& held) {
        std::uint64_t oldest = 0, time = ~std::uint64_t{0};
        for (const auto& one : used_) {
            const bool leaf = std::ranges::none_of(used_, [&](const auto& o) { return parent_[o.first] == one.first; });
            if (leaf && one.second < time && std::ranges::find(held, one.first) == held.end()) {
                oldest = one.first;
                time = one.second;
            }
        }
        return time != ~std::uint64_t{0} && used_.erase(oldest) == 1;
    }

    std::size_t capacity_;
    std::uint64_t now_ = 0;
    std::map<std::uint64_t, std::uint64_t> used_, parent_;
};

/// Records its calls; evicts the oldest evictable entry.
struct diary {
    using role = kv::eviction_role;
    std::vector<std::string>* pages;

    struct state {
        std::vector<std::string>* pages;
        std::vector<kv::slot_id> order = {};
        std::map<std::uint32_t, std::uint64_t> keys = {};

        void on_miss(const kv::eviction_entry& e) { pages->push_back("announce " + std::to_string(e.key)); }
        void admit(kv::slot_id slot, const kv::eviction_entry& e) {
            order.push_back(slot);
            keys[index_of(slot)] = e.key;
            pages->push_back("admit " + std::to_string(e.key) + " after " +
                             (e.parent ? std::to_string(keys.at(index_of(*e.parent))) : "nothing") + " depth " +
                             std::to_string(e.depth) + " of " + std::to_string(e.length) + " bytes " +
                             std::to_string(e.bytes) + (e.cost > 0.0 ? "" : " free"));
        }
        void touch(kv::slot_id slot) { write("touch", slot); }
        void on_released(kv::slot_id slot) { write("settle", slot); }
        void evict(kv::slot_id slot) {
            write("evict", slot);
            std::erase(order, slot);
        }
        void erase(kv::slot_id slot) { std::erase(order, slot); }
        template <class MayLeave>
        std::optional<kv::slot_id> victim(MayLeave&& is_evictable) {
            for (const kv::slot_id slot : order)
                if (is_evictable(slot))
                    return slot;
            return std::nullopt;
        }
        void write(const char* what, kv::slot_id slot) {
            pages->push_back(std::string(what) + " " + std::to_string(keys.at(index_of(slot))));
        }
    };
    [[nodiscard]] state open(kv::eviction_capacity) const { return {pages}; }
};

/// Names no victim.
struct keeper {
    using role = kv::eviction_role;
    struct state {
        void admit(kv::slot_id, const kv::eviction_entry&) {}
        void touch(kv::slot_id) {}
        void erase(kv::slot_id) {}
        std::optional<kv::slot_id> victim(auto&&) { return std::nullopt; }
    };
    [[nodiscard]] state open(kv::eviction_capacity) const { return {}; }
};

bench::prefix_request request_of(std::vector<std::uint64_t> blocks) {
    return {.input_tokens = blocks.size() * 4, .block_tokens = 4, .blocks = std::move(blocks)};
}

} // namespace

TEST_CASE("a replayed lru keeps what lru over a trie keeps") {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const std::size_t capacity = 1 + seed % 15;
        INFO("seed " << seed << ", capacity " << capacity);
        bench::prefix_replay<kv::eviction::lru> replay({}, capacity, 64, {});
        naive_lru naive(capacity);
        for (const auto& request : random_requests(seed, 200, 6)) {
            REQUIRE(replay.run(request) == naive.run(request));
            for (const std::uint64_t block : request.blocks)
                REQUIRE(replay.contains(block) == naive.contains(block));
        }
    }
}

TEMPLATE_LIST_TEST_CASE("every policy keeps a trie without holes within its capacity", "", kv::eviction_policies) {
    for (std::uint64_t seed = 100; seed < 120; ++seed) {
        const std::size_t capacity = 1 + seed % 13;
        INFO("seed " << seed << ", capacity " << capacity);
        bench::prefix_replay<TestType> replay({}, capacity, 64, {});
        bench::infinite_replay infinite(bench::prefill_work{});
        for (const auto& request : random_requests(seed, 200, 8)) {
            REQUIRE(replay.run(request) <= infinite.run(request));
            REQUIRE(replay.size() <= capacity);
            for (std::size_t i = 1; i < request.blocks.size(); ++i)
                REQUIRE((replay.contains(request.blocks[i - 1]) || !replay.contains(request.blocks[i])));
        }
        CHECK(replay.counts().accesses == infinite.counts().accesses);
    }
}

TEST_CASE("a policy receives the same calls for a request as in a cache") {
    std::vector<std::string> pages;
    bench::prefix_replay<diary> replay({&pages}, 3, 64, {});
    replay.run(request_of({1, 2, 3}));
    CHECK(pages == std::vector<std::string>{"announce 1", "admit 1 after nothing depth 0 of 3 bytes 64", "announce 2",
                                            "admit 2 after 1 depth 1 of 3 bytes 64", "announce 3",
                                            "admit 3 after 2 depth 2 of 3 bytes 64", "settle 3", "settle 2",
                                            "settle 1"});
    pages.clear();
    replay.run(request_of({1, 2, 4}));
    CHECK(pages == std::vector<std::string>{"touch 2", "touch 1", "announce 4", "evict 3",
                                            "admit 4 after 2 depth 2 of 3 bytes 64", "settle 4", "settle 2",
                                            "settle 1"});
}

TEST_CASE("a request longer than the capacity keeps its first blocks") {
    bench::prefix_replay<kv::eviction::lru> replay({}, 2, 64, {});
    CHECK(replay.run(request_of({7, 8})) == 0);
    CHECK(replay.run(request_of({1, 2, 3, 4})) == 0);
    CHECK(replay.run(request_of({1, 2, 3, 4})) == 2);
    CHECK(replay.size() == 2);
    CHECK(replay.counts().hits == 2);
    CHECK(replay.counts().misses() == 8);
}

TEST_CASE("a policy that evicts nothing keeps what came first") {
    bench::prefix_replay<keeper> replay({}, 2, 64, {});
    replay.run(request_of({1}));
    replay.run(request_of({2, 3}));
    CHECK(replay.run(request_of({2, 3})) == 1);
    CHECK(replay.run(request_of({1})) == 1);
}

TEST_CASE("tokens and work are counted as well as blocks") {
    bench::prefix_replay<kv::eviction::lru> replay({}, 10, 64, {.crossover = 8.0});
    replay.run(request_of({1, 2}));
    auto longer = request_of({1, 2, 3});
    longer.input_tokens = 9; // its last block is partial
    replay.run(longer);
    CHECK(replay.counts().hit_tokens == 8);
    CHECK(replay.counts().tokens == 17);
    // n tokens cost n and, with a crossover of 8, the sum of 1/8 to n/8.
    CHECK(replay.counts().saved_work == Approx(8 + 36 / 8.0));
    CHECK(replay.counts().work == Approx(8 + 36 / 8.0 + 9 + 45 / 8.0));
    CHECK(replay.counts().hit_ratio() == Approx(0.4));
}

TEST_CASE("a block that follows other blocks than before is refused") {
    bench::prefix_replay<kv::eviction::lru> replay({}, 10, 64, {});
    replay.run(request_of({1, 2}));
    CHECK_THROWS_AS(replay.run(request_of({2, 1})), kv::contract_violation);
    CHECK_THROWS_AS(bench::prefix_replay<kv::eviction::lru>({}, 0, 64, {}), kv::contract_violation);
}
