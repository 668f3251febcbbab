// SPDX-License-Identifier: MIT
#include <kvcache/cache/config.hpp>
#include <kvcache/cache/page_index.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/hash/xxh3.hpp>
#include <kvcache/index/radix.hpp>
#include <kvcache/testing/violations.hpp>

#include <optional>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 4, .tokens = 16};

/// Tracks which entries have children, and detects wrong calls.
struct noting {
    using role = kv::eviction_role;
    struct notes {
        std::set<kv::slot_id> present, covered;
        std::vector<kv::eviction_entry> told;
        bool wrong = false;
    };
    notes* to = nullptr;
    struct state {
        notes* to;
        void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
            to->wrong = to->wrong || !to->present.insert(slot).second;
            to->told.push_back(newcomer);
        }
        void touch(kv::slot_id) {}
        void erase(kv::slot_id slot) {
            to->wrong = to->wrong || to->present.erase(slot) == 0 || to->covered.contains(slot);
        }
        void on_child_added(kv::slot_id slot) {
            to->wrong = to->wrong || !to->present.contains(slot) || !to->covered.insert(slot).second;
        }
        void on_last_child_removed(kv::slot_id slot) { to->wrong = to->wrong || to->covered.erase(slot) == 0; }
        [[nodiscard]] std::optional<kv::slot_id> victim(const auto& is_evictable) {
            for (const kv::slot_id slot : to->present)
                if (is_evictable(slot))
                    return slot;
            return std::nullopt;
        }
    };
    [[nodiscard]] state open(kv::eviction_capacity) const { return {to}; }
};

using ranks = kv::page_eviction<kv::hash::xxh3::state, noting::state>;

std::vector<kv::token_id> run(std::uint64_t seed, std::size_t tokens) {
    std::vector<kv::token_id> out;
    for (std::size_t i = 0; i < tokens; ++i)
        out.push_back(kv::token_id{static_cast<std::int32_t>(seed * 100 + i)});
    return out;
}

} // namespace

TEST_CASE("a policy is told when a page gets its first child and when it loses its last") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        CAPTURE(seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::uint32_t pages = 24;
        noting::notes notes;
        kv::tenant_index<kv::index::radix::state> index(kv::index::radix{}, shape, pages, 0);
        ranks known({shape, pages, 64}, {}, kv::hash::xxh3{}, noting{&notes});
        std::vector<kv::page_id> full;
        std::uint64_t next = 0;
        for (int round = 0; round < 500; ++round) {
            const kv::page_id page{static_cast<std::uint32_t>(choose.below(pages))};
            if (!index.contains(page)) {
                std::erase_if(full, [&](kv::page_id one) { return !index.contains(one); });
                const auto parent =
                    full.empty() || choose.one_in(4) ? std::optional<kv::page_id>() : full[choose.below(full.size())];
                const bool whole = !choose.one_in(4); // a partial page may be unknown to the policy
                index.insert(parent, run(++next, whole ? 16 : 5), page);
                known.follow(index, index.parent(page));
                if (whole)
                    full.push_back(page);
                if (whole || choose.one_in(2))
                    known.rank(index, page, choose.below(9));
            } else if (index.leaf(page)) {
                const auto parent = index.parent(page);
                if (known.ranked(page) && choose.one_in(2))
                    known.evict(page);
                else
                    known.unrank(page);
                index.erase(page);
                known.follow(index, parent);
            }
            REQUIRE_FALSE(notes.wrong);
            for (std::uint32_t i = 0; i < pages; ++i) {
                const kv::page_id one{i};
                const kv::slot_id slot{i};
                REQUIRE(notes.present.contains(slot) == known.ranked(one));
                REQUIRE(notes.covered.contains(slot) == (known.ranked(one) && !index.leaf(one)));
            }
        }
        CHECK(known.victim([](kv::page_id) { return false; }) == std::nullopt);
    }
}

TEST_CASE("an entry costs what its tokens take at their place, as measured") {
    noting::notes notes;
    kv::tenant_index<kv::index::radix::state> index(kv::index::radix{}, shape, 4, 0);
    ranks known({shape, 4, 64}, {}, kv::hash::xxh3{}, noting{&notes});
    for (const std::size_t rows : {16u, 64u, 256u}) { // a token takes 1 ms, plus 10 us per position
        const auto n = static_cast<double>(rows);
        known.measure(0, rows, 1e-3 * n + 1e-5 * n * (n + 1) / 2);
    }
    std::optional<kv::page_id> parent;
    for (std::uint32_t i = 0; i < 4; ++i) {
        const kv::page_id page{i};
        index.insert(parent, run(i, i == 3 ? 4 : 16), page);
        known.rank(index, page, 3);
        parent = page;
    }
    REQUIRE(notes.told.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
        const double n = i == 3 ? 4.0 : 16.0, first = 16.0 * static_cast<double>(i);
        CHECK(notes.told[i].cost == Approx(1e-3 * n + 1e-5 * n * (first + (n + 1) / 2)).epsilon(1e-6));
        CHECK(notes.told[i].depth == i);
        CHECK(notes.told[i].length == (i == 3 ? 4u : 3u)); // a partial page ends its request
    }
}
