// SPDX-License-Identifier: MIT
// Engine requests with a tier that is slow, fails, or holds too much: a waiting request delays no other, and no
// answer depends on the tier.
#include <kvcache/cache/compose.hpp>
#include <kvcache/cache/tier_client.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/session/engine.hpp>
#include <kvcache/session/tier_prefetch.hpp>
#include <kvcache/tier/memory.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using at = std::chrono::steady_clock::time_point;

// A tier shared by several caches, with a gate before its reads.
struct gated {
    using role = kv::tier_role;
    struct place {
        kv::tier::memory<>::state store = kv::tier::memory<>{}.open();
        std::mutex lock;
        std::condition_variable moved;
        bool shut = false, fails = false;
        std::size_t waiting = 0;

        void pass() {
            std::unique_lock guard(lock);
            ++waiting;
            moved.notify_all();
            moved.wait(guard, [this] { return !shut; });
            --waiting;
        }
        void set(bool shuts) {
            const std::lock_guard guard(lock);
            shut = shuts;
            moved.notify_all();
        }
        // Waits until a read is at the gate.
        void wait() {
            std::unique_lock guard(lock);
            moved.wait(guard, [this] { return waiting > 0; });
        }
    };
    place* of = nullptr;
    struct state {
        place* of;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest& name, Use&& use) {
            of->pass();
            if (of->fails)
                return kv::error{kv::error_code::io, "gate", "a fault that was asked for"};
            return of->store.read(name, use);
        }
        kv::result<void> put(const kv::tier_entry& e, std::span<const std::span<const std::byte>> p) {
            return of->store.put(e, p);
        }
        bool contains(const kv::sha256_digest& name) { return of->store.contains(name); }
        kv::result<void> erase(const kv::sha256_digest& name) { return of->store.erase(name); }
        kv::result<void> flush() { return {}; }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return of->store.counts(); }
    };
    state open() const { return {of}; }
};
static_assert(kv::tier_policy<gated>);

using cache = kv::cache<kv::locking::mutex, gated>;
using engine = kv::engine<cache, kv::transformer>;

using small::model;
using small::some;

struct told {
    tokens ids = {};
    std::vector<float> scores = {};
    std::optional<kv::finish_reason> finish_reason = {};
    std::size_t reused = 0;
};

// A new process: its own cache and engine.
struct fixture {
    explicit fixture(gated::place& from, std::size_t pages = 60, kv::engine_limits limits = {.max_batch_tokens = 64})
        : store(kv::make_cache({model().shape(16),
                                {.bytes = pages * kv::codec::f32{}.open(model().shape(16)).page_bytes()},
                                model().id({1, 2})},
                               kv::locking::mutex{}, gated{&from})),
          pipeline(store, model(), pool, 64),
          runs(std::in_place, store, model(), pipeline, limits) {}
    ~fixture() {
        runs.reset(); // ends the reads
        CHECK(store.check());
        CHECK(store.stats().in_use == 0);
    }

    kv::request_id ask(const tokens& prompt, told& into) {
        const auto made = runs->submit({.prompt = prompt,
                                        .stop = {.max_tokens = 6},
                                        .log_probabilities = 0,
                                        .on_token =
                                            [&into](const kv::generated_token& token) {
                                                into.ids.push_back(token.token);
                                                into.scores.push_back(*token.log_probability);
                                                return kv::token_action::go_on;
                                            },
                                        .on_finish =
                                            [&into](kv::engine_outcome<cache>&& end) {
                                                into.finish_reason = end.answers.front().finish_reason;
                                                into.reused = end.reused;
                                            }});
        REQUIRE(made);
        return *made;
    }
    void run() {
        while (runs->step(at{})) {
        }
    }
    told answer(const tokens& prompt) {
        told made;
        static_cast<void>(ask(prompt, made));
        run();
        return made;
    }

    kv::thread_pool pool{1};
    cache store;
    kv::pipeline<cache, kv::transformer> pipeline;
    std::optional<engine> runs;
};

void check_same(const told& made, const told& wanted) {
    CHECK(made.ids == wanted.ids);
    CHECK(made.scores == wanted.scores);
    CHECK(made.finish_reason == kv::finish_reason::length);
}

} // namespace

TEST_CASE("who waits for the tier is passed, and is answered with the bits of a cold run") {
    gated::place nothing, from;
    const tokens known = some(150, 1), other = some(40, 2);
    const told wanted = fixture(nothing).answer(known), wanted_other = fixture(nothing).answer(other);
    check_same(fixture(from).answer(known), wanted); // stored from here on

    fixture here(from);
    from.set(true);
    told first, second;
    static_cast<void>(here.ask(known, first));
    from.wait();
    static_cast<void>(here.ask(other, second));
    for (int steps = 0; !second.finish_reason; ++steps) {
        REQUIRE(steps < 1000);
        REQUIRE(here.runs->step(at{}));
    }
    check_same(second, wanted_other);
    CHECK_FALSE(first.finish_reason);
    CHECK(here.runs->stats().waiting == 1);
    from.set(false);
    here.run();
    check_same(first, wanted);
    CHECK(first.reused == 144);
    CHECK(kv::tier_stats_of(here.store).loaded_tokens == 144);
    CHECK(kv::tier_stats_of(here.store).hits == 1);
    check_same(here.answer(known), wanted);          // from memory
    CHECK(kv::tier_stats_of(here.store).asked == 2); // the other prompt, absent from the tier, was requested once
}

TEST_CASE("who is cancelled, or late, does not wait for the tier") {
    gated::place from;
    const tokens known = some(150, 3);
    static_cast<void>(fixture(from).answer(known));
    fixture here(from);
    from.set(true);
    told first, second;
    const auto id = here.ask(known, first);
    from.wait();
    static_cast<void>(here.ask(some(70, 3), second)); // it is cancelled before its turn
    here.runs->cancel(id);
    static_cast<void>(here.runs->step(at{}));
    CHECK(first.finish_reason == kv::finish_reason::cancelled);
    here.runs->close();
    CHECK(second.finish_reason == kv::finish_reason::cancelled);
    CHECK((first.ids.empty() && second.ids.empty()));
    from.set(false);
}

TEST_CASE("a tier that fails leaves the prompt to be computed") {
    gated::place from;
    const tokens known = some(150, 4);
    const told wanted = fixture(from).answer(known);
    from.fails = true;
    fixture here(from);
    const told made = here.answer(known);
    check_same(made, wanted);
    CHECK(made.reused == 0);
    CHECK(kv::tier_stats_of(here.store).failed == 1);
}

TEST_CASE("a crowd whose pages are all in the tier finds room, one after the other") {
    gated::place nothing, from;
    std::vector<tokens> prompts;
    std::vector<told> wanted;
    for (unsigned seed = 0; seed < 12; ++seed) {
        prompts.push_back(some(100 + seed * 5, seed % 8));
        wanted.push_back(fixture(nothing).answer(prompts.back()));
        static_cast<void>(fixture(from).answer(prompts.back()));
    }
    for (const std::size_t pages : {12u, 20u, 60u}) { // one prompt needs up to eleven
        CAPTURE(pages);
        fixture here(from, pages);
        std::vector<told> made(prompts.size());
        for (std::size_t i = 0; i < prompts.size(); ++i)
            static_cast<void>(here.ask(prompts[i], made[i]));
        here.run();
        for (std::size_t i = 0; i < prompts.size(); ++i) {
            CAPTURE(i);
            check_same(made[i], wanted[i]);
        }
        CHECK(kv::tier_stats_of(here.store).hits > 0);
    }
}
