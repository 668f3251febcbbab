// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/arc.hpp>
#include <kvcache/eviction/learned_reuse.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/s3_fifo.hpp>

#include <algorithm>
#include <numeric>

#include "../../bench/replay/prefix_replay.hpp"
#include "model.hpp"

using namespace eviction_model;

TEST_CASE("before it has learned, nothing is worth anything") {
    kv::eviction::age_histogram<2> ages;
    ages.begin(0);
    ages.use(0, 100);
    for (const std::uint32_t age : {0u, 1u, 7u, 1000u, 0xffffffffu})
        CHECK(ages.worth(0, age) == 0.0);
}

TEST_CASE("an entry that is reused at one age is worth more the nearer that age is, and little after it") {
    kv::eviction::age_histogram<2> ages;
    for (int i = 0; i < 1000; ++i) {
        ages.begin(0);
        ages.use(0, 1000);
    }
    ages.learn(1.0);
    double before = 0.0;
    for (std::uint32_t age = 1; age < 768; age *= 2) {
        CHECK(ages.worth(0, age) >= before);
        before = ages.worth(0, age);
    }
    // All entries return within the 1024 uses at which the bin of 1000 ends.
    CHECK(ages.worth(0, 1) == Approx(1.0 / 1024.0).epsilon(0.3));
    CHECK(ages.worth(0, 4096) < before / 100.0);
}

TEST_CASE("a class that returns more often is worth more, in proportion") {
    kv::eviction::age_histogram<3> ages;
    for (int i = 0; i < 10000; ++i) {
        ages.begin(0);
        ages.begin(1);
        if (i % 10 == 0)
            ages.use(0, 500);
        if (i % 2 == 0)
            ages.use(1, 500);
    }
    ages.learn(1.0);
    // Half of the entries have returned by then, so the time until a use or the horizon is shorter too.
    CHECK(ages.worth(1, 2) / ages.worth(0, 2) == Approx(5.0).epsilon(0.1));
    INFO("a class without entries is as all are together");
    CHECK(ages.worth(2, 2) > ages.worth(0, 2));
    CHECK(ages.worth(2, 2) < ages.worth(1, 2));
}

TEST_CASE("what was learned fades") {
    kv::eviction::age_histogram<1> ages;
    const auto see = [&](std::uint32_t age) {
        for (int i = 0; i < 1000; ++i) {
            ages.begin(0);
            ages.use(0, age);
        }
        ages.learn(0.5);
    };
    see(16);
    const double early = ages.worth(0, 1);
    for (int round = 0; round < 20; ++round)
        see(4096);
    CHECK(ages.worth(0, 1) < early / 20.0);
}

namespace {

constexpr auto anyone = [](kv::slot_id) { return true; };

// The hit ratio of these prompts' blocks in a cache of `capacity` blocks with this policy.
template <class Policy>
double hit_ratio(const Policy& policy, std::size_t capacity, const std::vector<std::vector<std::uint64_t>>& prompts) {
    bench::prefix_replay<Policy> replay(policy, capacity, 1, {});
    std::size_t hits = 0, all = 0;
    for (const auto& prompt : prompts) {
        hits += replay.run({.input_tokens = 16 * prompt.size(), .block_tokens = 16, .blocks = prompt});
        all += prompt.size();
    }
    return static_cast<double>(hits) / static_cast<double>(all);
}

// `length` blocks of a new chain.
std::vector<std::uint64_t> chain(std::uint64_t name, std::size_t length) {
    std::vector<std::uint64_t> blocks(length);
    std::iota(blocks.begin(), blocks.end(), name << 32);
    return blocks;
}

// The value of an entry by its age and its class of uses, from counts of all reuse ages. Every sum is computed anew.
struct plain_learned_reuse {
    static constexpr std::size_t classes = 5, bins = 64;
    struct entry {
        std::uint64_t key = 0;
        std::size_t uses = 0;
        double bytes = 0.0;
        std::uint32_t used = 0;
    };
    struct ghost {
        std::uint64_t key = 0;
        std::size_t of = 0;
        std::uint32_t used = 0;
    };
    explicit plain_learned_reuse(std::size_t slots)
        : most_ghosts(4 * slots), period(std::max<std::size_t>(slots, 64)) {}

    // Classes: 1, 2, 3 to 4, 5 to 8 and more uses.
    [[nodiscard]] static std::size_t class_of(const entry& one) {
        return one.uses < 3 ? one.uses - 1 : one.uses < 5 ? 2 : one.uses < 9 ? 3 : 4;
    }
    // Bins begin at 1, 2, 3, 4, 6, 8, 12 ... uses: two an octave.
    [[nodiscard]] static double begin_of(std::size_t bin) {
        return std::ldexp(bin % 2 == 0 ? 1.0 : 1.5, static_cast<int>(bin / 2));
    }
    [[nodiscard]] static std::size_t bin_of(std::uint32_t age) {
        std::size_t bin = 0;
        while (bin + 1 < bins && begin_of(bin + 1) <= std::max(1.0, static_cast<double>(age)))
            ++bin;
        return bin;
    }

    // The best hits by time over all horizons, of an entry of class `c` that waits since the begin of each bin.
    [[nodiscard]] std::vector<double> index(std::size_t c) const {
        double begun_in_all = 0.0;
        for (const double one : begun)
            begun_in_all += one;
        std::vector<double> chance(bins), waiting(bins + 1, 1.0), made;
        for (std::size_t bin = 0; bin < bins; ++bin) {
            double used_in_all = 0.0;
            for (std::size_t k = 0; k < classes; ++k)
                used_in_all += used[k][bin];
            const double average = begun_in_all > 0.0 ? used_in_all / begun_in_all : 0.0;
            chance[bin] = (used[c][bin] + average) / (begun[c] + 1.0); // as if one more entry were average
            waiting[bin + 1] = std::max(1e-9, waiting[bin] - chance[bin]);
        }
        for (std::size_t from = 0; from < bins; ++from) {
            double hits = 0.0, time = 0.0, best = 0.0;
            for (std::size_t bin = from; bin < bins; ++bin) {
                hits += chance[bin];
                time += (begin_of(bin + 1) - begin_of(bin)) * (waiting[bin] + waiting[bin + 1]) / 2.0;
                best = std::max(best, hits / time);
            }
            made.push_back(best);
        }
        return made;
    }
    void learn() {
        for (std::size_t c = 0; c < classes; ++c)
            kvcache::ranges::copy(index(c), worth[c]);
        const double kept =
            1.0 - 0.1 * static_cast<double>(since_learned) / static_cast<double>(std::max<std::size_t>(period, 2000));
        for (std::size_t c = 0; c < classes; ++c) {
            begun[c] *= kept;
            for (double& one : used[c])
                one *= kept;
        }
        since_learned = 0;
        ++learned;
    }

    void use(kv::slot_id slot) {
        entry& one = entries[slot];
        one.uses = std::min<std::size_t>(one.uses + 1, 255);
        one.used = ++clock;
        ++begun[class_of(one)];
        lists[class_of(one)].push_front(slot);
        if (++since_learned == period)
            learn();
    }
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        entries[slot] = {.key = newcomer.key, .bytes = static_cast<double>(newcomer.bytes)};
        const auto returns = kvcache::ranges::find(ghosts, newcomer.key, &ghost::key);
        if (returns != ghosts.end()) {
            constexpr std::size_t fewest[] = {1, 2, 3, 5, 9}; // uses of a class
            entries[slot].uses = fewest[returns->of];
            ++used[returns->of][bin_of(clock - returns->used)];
            ghosts.erase(returns);
        }
        use(slot);
    }
    void touch(kv::slot_id slot) {
        const entry& one = entries[slot];
        ++used[class_of(one)][bin_of(clock - one.used)];
        lists[class_of(one)].remove(slot);
        use(slot);
    }
    void on_released(kv::slot_id slot) { to_front(lists[class_of(entries[slot])], slot); }
    void erase(kv::slot_id slot) {
        lists[class_of(entries[slot])].remove(slot);
        entries.erase(slot);
    }
    void evict(kv::slot_id slot) {
        const entry& one = entries[slot];
        if (ghosts.size() == most_ghosts)
            ghosts.pop_back();
        ghosts.push_front({one.key, class_of(one), one.used / 8 * 8}); // a mark: the class takes three bits of the time
        erase(slot);
    }
    // The least by worth of the oldest and the newest evictable entry of each list, of equal ones the older.
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        std::optional<kv::slot_id> found;
        std::pair<double, std::uint32_t> least; // its worth, and the uses until its last one
        for (std::size_t c = 0; c < classes; ++c) {
            std::vector<kv::slot_id> evictable;
            std::copy_if(lists[c].begin(), lists[c].end(), std::back_inserter(evictable), is_evictable);
            if (evictable.empty())
                continue;
            for (const kv::slot_id slot : {evictable.back(), evictable.front()}) {
                const entry& one = entries[slot];
                const std::pair own(worth[c][bin_of(clock - one.used)] / one.bytes, one.used);
                if (!found || own < least) {
                    found = slot;
                    least = own;
                }
            }
        }
        return found;
    }

    std::size_t most_ghosts, period;
    std::map<kv::slot_id, entry> entries;
    queue lists[classes];
    std::list<ghost> ghosts; // newest first
    double begun[classes] = {}, used[classes][bins] = {}, worth[classes][bins] = {};
    std::uint32_t clock = 0;
    std::size_t since_learned = 0;
    int learned = 0;
};

} // namespace

TEST_CASE("before it has learned, learned_reuse is lru") {
    for (std::uint64_t seed = 0; seed < 250; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::uint32_t slots = 12;
        auto state = kv::eviction::learned_reuse{}.open({.slots = slots, .bytes = slots});
        queue order;
        for (int round = 0; round < 60; ++round) { // it learns after 64 uses
            const kv::slot_id slot{static_cast<std::uint32_t>(choose.below(slots))};
            if (!in(order, slot)) {
                state.admit(slot, {.key = choose.below(1000), .bytes = 1});
                order.push_front(slot);
            } else if (choose.one_in(4)) {
                state.erase(slot);
                order.remove(slot);
            } else {
                state.touch(slot);
                to_front(order, slot);
            }
            const auto victim = state.victim(anyone);
            CHECK(victim == (order.empty() ? std::nullopt : std::optional(order.back())));
        }
    }
    says_what_a_caller_does_wrong(kv::eviction::learned_reuse{});
}

TEST_CASE("one history of learned_reuse, one victim") {
    same_victims(kv::eviction::learned_reuse{},
                 [](kv::eviction_capacity capacity) { return kv::eviction::learned_reuse{}.open(capacity); });
}

TEST_CASE("after it has learned, learned_reuse has the victims of its rule in plain code") {
    const auto plain = [](kv::eviction_capacity capacity) { return plain_learned_reuse(capacity.slots); };
    same_victims(kv::eviction::learned_reuse{}, plain, {.seeds = 10, .rounds = 20'000});
    same_victims(kv::eviction::learned_reuse{}, plain, {.seeds = 4, .rounds = 20'000, .slots = 60, .children = true});
}

TEST_CASE("of a loop that is larger than the cache, learned_reuse keeps a part") {
    std::vector<std::vector<std::uint64_t>> prompts;
    for (std::uint64_t i = 0; i < 4000; ++i)
        prompts.push_back(chain(i % 100, 10));
    CHECK(hit_ratio(kv::eviction::lru{}, 700, prompts) == 0.0);
    CHECK(hit_ratio(kv::eviction::learned_reuse{}, 700, prompts) > 0.5);
}

TEST_CASE("of conversations that take turns in a small cache, learned_reuse keeps a part") {
    // Twelve conversations grow by two or three pages a turn, to 24 pages each.
    std::vector<std::vector<std::uint64_t>> prompts;
    for (std::size_t turn = 1; turn <= 10; ++turn)
        for (std::uint64_t talk = 0; talk < 12; ++talk)
            prompts.push_back(chain(talk, turn * 12 / 5));
    CHECK(hit_ratio(kv::eviction::lru{}, 180, prompts) < 0.4);
    CHECK(hit_ratio(kv::eviction::learned_reuse{}, 180, prompts) > 0.6);
}

TEST_CASE("what is used again outlives what is used once, also beyond its stay") {
    // Every fifth prompt is the next of 40 in a cycle, which return after 4000 blocks; the others occur once.
    std::vector<std::vector<std::uint64_t>> prompts;
    for (std::uint64_t i = 0; i < 8000; ++i)
        prompts.push_back(chain(i % 5 == 0 ? i / 5 % 40 : 1000 + i, 20));
    CHECK(hit_ratio(kv::eviction::lru{}, 2000, prompts) == 0.0);
    CHECK(hit_ratio(kv::eviction::learned_reuse{}, 2000, prompts) > 0.15); // of at most 0.2
}

TEST_CASE("on conversations learned_reuse is close to the best of lru, arc and s3_fifo") {
    for (const std::uint64_t seed : {1u, 2u}) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        std::vector<std::vector<std::uint64_t>> live, prompts;
        for (std::uint64_t n = 0; n < 6000; ++n) {
            if (live.size() < 200 || choose.one_in(8))
                live.push_back(chain(n + 1, 1 + choose.below(20)));
            auto& talk = live[live.size() - 1 - choose.below(std::min<std::size_t>(live.size(), 200))];
            prompts.push_back(talk);
            const auto more = chain(1000000 + n, 1 + choose.below(4));
            talk.insert(talk.end(), more.begin(), more.end());
        }
        for (const std::size_t capacity : {1000u, 3000u, 10000u}) {
            INFO("capacity " << capacity);
            const double best = std::max({hit_ratio(kv::eviction::lru{}, capacity, prompts),
                                          hit_ratio(kv::eviction::arc{}, capacity, prompts),
                                          hit_ratio(kv::eviction::s3_fifo{}, capacity, prompts)});
            CHECK(hit_ratio(kv::eviction::learned_reuse{}, capacity, prompts) >= 0.98 * best);
        }
    }
}
