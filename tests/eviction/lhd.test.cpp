// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/lhd.hpp>
#include <kvcache/eviction/lru.hpp>

#include "model.hpp"

using namespace eviction_model;

TEST_CASE("before anything is learned the young and the soon hit are dear") {
    const kv::eviction::hit_density density(100);
    CHECK(density.young());
    CHECK(density.at(3, 0) > density.at(3, 1));
    CHECK(density.at(4, 1) > density.at(3, 1));
}

TEST_CASE("groups are powers of two, the shortest ages highest") {
    const kv::eviction::hit_density density(100);
    CHECK(density.ages() == 256);
    CHECK(density.group(0) == 15);
    CHECK(density.group(1) == 8);
    CHECK(density.group(2) == 7);
    CHECK(density.group(3) == 7);
    CHECK(density.group(255) == 1);
    CHECK(density.group(256) == 0);
    CHECK(density.group(512) == 0);
}

TEST_CASE("density is the hits to come by the time to come") {
    kv::eviction::hit_density density(64); // updates every 1,024 uses
    for (int event = 0; event < 300; ++event) {
        density.hit(2, 1);
        density.evicted(2, 3);
    }
    for (int use = 0; use < 1024; ++use)
        density.pass(10);
    // At age 3: no hits, one of two entries is evicted. At age 1: half are hit at once, half stay for 3 steps.
    CHECK(density.at(2, 3) == Approx(0.0));
    CHECK(density.at(2, 1) == Approx(300.0 / (300.0 + 300.0 + 600.0)));
    CHECK(density.at(2, 0) == Approx(300.0 / 1800.0));
    CHECK(density.at(5, 0) == Approx(0.0)); // no events there
}

TEST_CASE("ages keep their meaning when their steps change") {
    kv::eviction::hit_density density(1024); // a step is 128 uses; updates every 2^14
    const auto rounds = [&](int count) {
        for (int use = 0; use < count << 14; ++use)
            density.pass(64); // few entries: a step is 8 uses from the sixth round on
    };
    rounds(5);
    CHECK(density.age(density.now() - 127) == 0);
    for (int event = 0; event < 1000; ++event)
        density.hit(0, 1); // 128 to 255 uses old: 16 to 31 of the new steps
    rounds(1);
    CHECK(density.age(density.now() - 7) == 0);
    CHECK(density.age(density.now() - 8) == 1);
    CHECK(density.at(0, 31) == Approx(1.0));
    CHECK(density.at(0, 16) == Approx(16.0 / (16.0 * 17.0 / 2.0)));
    CHECK(density.at(0, 32) == Approx(0.0));
}

namespace {

constexpr auto anyone = [](kv::slot_id) { return true; };

// Hit density by the paper's sums, computed from the counts when needed, over one list of entries.
struct plain_lhd {
    static constexpr std::size_t classes = 16;
    struct entry {
        float bytes = 0.0f;
        std::uint32_t used = 0;
        std::size_t last = 0, before = 0; // ages at the last two hits
        bool spared = false;
    };
    using row = std::vector<float>; // by age

    plain_lhd(kv::eviction_capacity capacity, std::uint64_t seed)
        : ages(std::clamp<std::size_t>(capacity.slots / 32, 256, 4096)),
          period(
              std::clamp<std::uint32_t>(static_cast<std::uint32_t>(std::bit_ceil(capacity.slots)) * 16, 1024, 1 << 20)),
          step(step_for(capacity.slots)),
          budget(static_cast<double>(capacity.bytes) * 0.01),
          random_state(seed),
          hits(classes, row(ages)),
          evictions(classes, row(ages)),
          densities(classes, row(ages)) {
        for (std::size_t c = 0; c < classes; ++c)
            for (std::size_t age = 0; age < ages; ++age)
                densities[c][age] = static_cast<float>(classes + c + 1) / static_cast<float>(age + 1);
    }

    // The uses in one step of age: the largest power of two for which all ages together span at most 32 uses an entry.
    [[nodiscard]] std::uint32_t step_for(std::size_t entries_there) const {
        std::uint32_t uses = 1;
        while (std::size_t{2} * uses * ages <= 32 * entries_there)
            uses *= 2;
        return uses;
    }
    std::uint64_t random() {
        std::uint64_t x = random_state += 0x9e3779b97f4a7c15ull; // splitmix64
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
    }
    [[nodiscard]] std::size_t age_of(const entry& one) const {
        return std::min<std::size_t>((now - one.used) / step, ages - 1);
    }
    // The classes halve: the sum of the last two ages is at least all ages in class 0, half of them in class 1 ...
    [[nodiscard]] std::size_t class_of(const entry& one) const {
        const std::size_t sum = one.last + one.before;
        std::size_t c = sum == 0 ? classes - 1 : 0;
        while (c < classes - 1 && sum * (std::size_t{1} << c) < ages)
            ++c;
        return c;
    }
    [[nodiscard]] float density(kv::slot_id slot) const {
        const entry& one = entries.at(slot);
        if (age_of(one) == ages - 1)
            return std::numeric_limits<float>::lowest();
        return densities[class_of(one)][age_of(one)] / one.bytes + (one.spared ? 1.0f : 0.0f);
    }

    void learn() {
        for (std::vector<row>* counts : {&hits, &evictions})
            for (row& of : *counts)
                for (float& count : of)
                    count *= 0.9f;
        if (rounds == 5 || rounds == 25) { // the step now suits the entries that fit
            const std::uint32_t suited = step_for(entries.size());
            for (std::vector<row>* counts : {&hits, &evictions})
                for (row& of : *counts)
                    of = suited > step ? merged(of, suited / step) : spread(of, step / suited);
            step = suited;
        }
        ++rounds;
        for (std::size_t c = 0; c < classes; ++c)
            for (std::size_t age = 0; age < ages; ++age) {
                float events = 0.0f, hits_after = 0.0f, lifetimes = 0.0f;
                for (std::size_t later = ages; later-- > age;) {
                    hits_after += hits[c][later];
                    events += hits[c][later] + evictions[c][later];
                    lifetimes += events; // an event at an age is one step more for each age before it
                }
                densities[c][age] = events > 1e-5f ? hits_after / lifetimes : 0.0f;
            }
    }
    [[nodiscard]] row merged(const row& of, std::size_t width) const {
        row made(ages);
        for (std::size_t age = 0; age < ages; ++age)
            made[age / width] += of[age];
        return made;
    }
    [[nodiscard]] row spread(const row& of, std::size_t width) const {
        row made(ages);
        for (std::size_t age = ages; age-- > 0;)
            for (std::size_t part = 0; part < width; ++part)
                made[std::min(age * width + part, ages - 1)] += of[age] / static_cast<float>(width);
        return made;
    }

    bool use(entry& one) {
        one.used = now;
        const bool drawn = random() % 32 == 0;
        one.spared = drawn && budget > 0.0 && rounds < 50;
        if (one.spared)
            budget -= static_cast<double>(one.bytes);
        if (++now % period == 0)
            learn();
        return drawn;
    }
    void no_longer_spared(entry& one) {
        if (one.spared)
            budget += static_cast<double>(one.bytes);
        one.spared = false;
    }
    void not_sampled(kv::slot_id slot) {
        const auto at = kvcache::ranges::find(sampled, slot);
        if (at == sampled.end())
            return;
        *at = sampled.back();
        sampled.pop_back();
    }

    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        sampled.push_back(slot);
        entry& one = entries[slot] = {.bytes = static_cast<float>(newcomer.bytes), .before = ages};
        if (!use(one) && density(slot) < victims_density) {
            newcomers.resize(std::min<std::size_t>(newcomers_ever + 1, 8));
            newcomers[newcomers_ever++ % 8] = slot;
        }
    }
    void touch(kv::slot_id slot) {
        entry& one = entries[slot];
        const std::size_t age = age_of(one);
        ++hits[class_of(one)][age];
        no_longer_spared(one);
        one.before = std::exchange(one.last, age);
        use(one);
    }
    void on_child_added(kv::slot_id slot) { not_sampled(slot); }
    void on_last_child_removed(kv::slot_id slot) { sampled.push_back(slot); }
    void erase(kv::slot_id slot) {
        no_longer_spared(entries[slot]);
        not_sampled(slot);
        entries.erase(slot);
    }
    void evict(kv::slot_id slot) {
        ++evictions[class_of(entries[slot])][age_of(entries[slot])];
        erase(slot);
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        const std::size_t samples = rounds < 50 ? 8 : 32;
        std::vector<kv::slot_id> candidates;
        if (sampled.size() > samples) {
            for (std::size_t n = 0; n < samples; ++n)
                candidates.push_back(sampled[static_cast<std::size_t>(random() % sampled.size())]);
            candidates.insert(candidates.end(), newcomers.begin(), newcomers.end());
        }
        auto found = least_dense(candidates, is_evictable);
        if (!found)
            found = least_dense(sampled, is_evictable);
        if (found)
            victims_density = 0.9f * victims_density + 0.1f * density(*found);
        return found;
    }
    std::optional<kv::slot_id> least_dense(const std::vector<kv::slot_id>& among, const auto& is_evictable) const {
        std::optional<kv::slot_id> found;
        for (const kv::slot_id slot : among)
            if (kvcache::ranges::find(sampled, slot) != sampled.end() && is_evictable(slot) &&
                (!found || density(slot) < density(*found)))
                found = slot;
        return found;
    }

    std::size_t ages;
    std::uint32_t period, step;
    double budget;
    std::uint64_t random_state;
    std::vector<row> hits, evictions, densities; // by class
    std::uint32_t now = 0;
    int rounds = 0;
    float victims_density = 0.0f;
    std::map<kv::slot_id, entry> entries;
    std::vector<kv::slot_id> sampled, newcomers;
    std::size_t newcomers_ever = 0;
};

} // namespace

TEST_CASE("of equal entries, lhd evicts the largest") {
    auto state = kv::eviction::lhd{}.open({.slots = 3, .bytes = 0});
    for (std::uint32_t slot = 0; slot < 3; ++slot)
        state.admit(kv::slot_id{slot}, {.key = slot, .bytes = slot == 1 ? 64u : 8u});
    CHECK(state.victim(anyone) == kv::slot_id{1});
    CHECK(state.victim([](kv::slot_id slot) { return slot == kv::slot_id{2}; }) == kv::slot_id{2});
    CHECK_FALSE(state.victim([](kv::slot_id) { return false; }));
    says_what_a_caller_does_wrong(kv::eviction::lhd{});
}

TEST_CASE("one seed of lhd, one victim") {
    for (std::uint64_t seed = 0; seed < 3; ++seed)
        same_victims(kv::eviction::lhd{.seed = seed},
                     [&](kv::eviction_capacity capacity) { return kv::eviction::lhd{.seed = seed}.open(capacity); });
}

TEST_CASE("lhd finds the one that may leave among many") {
    constexpr std::uint32_t slots = 500;
    auto state = kv::eviction::lhd{}.open({.slots = slots, .bytes = slots});
    for (std::uint32_t slot = 0; slot < slots; ++slot)
        state.admit(kv::slot_id{slot}, {.key = slot, .bytes = 1});
    for (const std::uint32_t only : {0u, 77u, 499u})
        CHECK(state.victim([&](kv::slot_id slot) { return index_of(slot) == only; }) == kv::slot_id{only});
}

TEST_CASE("lhd learns that what is scanned is not hit, and keeps what is") {
    // One use in five is of one of 60 keys; the other keys are used once. The capacity is 100.
    constexpr std::uint32_t slots = 100;
    const auto hits = [&](const auto& policy) {
        kv::testing::detail::choices choose(1);
        auto state = policy.open({.slots = slots, .bytes = slots});
        std::map<std::uint64_t, kv::slot_id> present;
        std::vector<std::uint64_t> keys(slots);
        std::size_t found = 0;
        for (std::uint64_t round = 0; round < 200'000; ++round) {
            const std::uint64_t key = round % 5 == 0 ? choose.below(60) : 1000 + round;
            if (const auto at = present.find(key); at != present.end()) {
                state.touch(at->second);
                found += round > 100'000;
                continue;
            }
            kv::slot_id slot{static_cast<std::uint32_t>(present.size())};
            if (present.size() == slots) {
                slot = *state.victim(anyone);
                kv::evict(state, slot);
                present.erase(keys[index_of(slot)]);
            }
            state.admit(slot, {.key = key, .bytes = 1});
            keys[index_of(slot)] = key;
            present[key] = slot;
        }
        return found;
    };
    CHECK(hits(kv::eviction::lhd{}) > 2 * hits(kv::eviction::lru{}));
}

TEST_CASE("what others continue is not drawn, and is again when they have left") {
    constexpr std::uint32_t slots = 500;
    auto state = kv::eviction::lhd{}.open({.slots = slots, .bytes = slots});
    for (std::uint32_t slot = 0; slot < slots; ++slot)
        state.admit(kv::slot_id{slot}, {.key = slot, .bytes = 1});
    for (std::uint32_t slot = 0; slot + 1 < slots; ++slot)
        kv::on_child_added(state, kv::slot_id{slot});
    std::size_t asked = 0;
    const auto counting = [&](kv::slot_id) { return ++asked > 0; };
    for (std::uint32_t slot = slots - 1; slot > 0; --slot) { // a chain is evicted from its end
        CHECK(state.victim(counting) == kv::slot_id{slot});
        kv::evict(state, kv::slot_id{slot});
        kv::on_last_child_removed(state, kv::slot_id{slot - 1});
    }
    CHECK(asked == slots - 1);
}

TEST_CASE("lhd has the victims of its rule in plain code, also after it learned") {
    const auto plain = [](kv::eviction_capacity capacity) { return plain_lhd(capacity, 1); };
    same_victims(kv::eviction::lhd{}, plain, {.children = true});
    INFO("64 slots: steps of ages change, and samples are larger after 50 rounds");
    same_victims(kv::eviction::lhd{}, plain, {.seeds = 2, .rounds = 120'000, .slots = 64, .children = true});
}
