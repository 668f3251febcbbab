// SPDX-License-Identifier: MIT
// Clients that share an engine.
#include <kvcache/cache.hpp>
#include <kvcache/session/engine.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using small::some;

struct host {
    using cache = kv::cache<>;

    explicit host(kv::engine_limits limits, std::size_t pages = 4000)
        : store(kv::make_cache({small::model().shape(16), {.pages = pages}})),
          plain(store, small::model(), pool, limits.max_batch_tokens),
          engine(store, small::model(), plain, limits) {}
    ~host() {
        CHECK(store.check().has_value());
        CHECK(store.stats().in_use == 0);
    }

    kv::result<kv::request_id> ask(int name, std::uint64_t client, const tokens& prompt, std::size_t answer,
                                   std::size_t choices = 1) {
        kv::engine_request<cache> request{
            .prompt = prompt, .client = client, .stop = {.max_tokens = answer}, .choices = choices};
        request.on_token = [this, name](const kv::generated_token&) {
            first.emplace(name, steps);
            if (heard)
                heard(name);
            return kv::token_action::go_on;
        };
        request.on_finish = [this, name](kv::engine_outcome<cache>&& end) {
            for (auto& answered : end.answers)
                answered.sequence.reset();
            ended.emplace(name, std::move(end));
        };
        if (change)
            change(request);
        return engine.submit(std::move(request));
    }
    std::function<void(kv::engine_request<cache>&)> change = {}; // of the next requests
    std::function<void(int name)> heard = {};                    // a token
    bool step() {
        ++steps;
        return engine.step({});
    }
    void run() {
        while (step()) {
        }
    }

    kv::thread_pool pool;
    cache store;
    kv::pipeline<cache, kv::transformer> plain;
    kv::engine<cache, kv::transformer> engine;
    std::size_t steps = 0;
    std::map<int, std::size_t> first; // the step of the first token
    std::map<int, kv::engine_outcome<cache>> ended;
};

} // namespace

TEST_CASE("a client that floods an engine delays another one's request by a step") {
    host h({.max_batch_tokens = 32, .max_sequences = 8, .waiting = 200});
    for (int i = 0; i < 100; ++i)
        REQUIRE(h.ask(i, 1, some(100, static_cast<unsigned>(i)), 50).has_value());
    for (int i = 0; i < 20; ++i)
        h.step();
    const std::size_t before = h.steps;
    for (int i = 0; i < 3; ++i)
        REQUIRE(
            h.ask(1000 + i, 2 + static_cast<std::uint64_t>(i), some(8, 500 + static_cast<unsigned>(i)), 4).has_value());
    h.run();
    for (int i = 0; i < 3; ++i) {
        CHECK(h.first.at(1000 + i) <= before + 4); // three prompts, of which one may wait for another
        CHECK_FALSE(h.ended.at(1000 + i).failure);
    }
    for (int i = 0; i < 100; ++i) {
        CHECK_FALSE(h.ended.at(i).failure);
        CHECK(h.ended.at(i).answers[0].ids.size() == 50);
    }
}

TEST_CASE("prompts of two clients get the same number of rows") {
    host h({.max_batch_tokens = 32, .max_sequences = 8, .waiting = 200});
    for (int i = 0; i < 20; ++i)
        REQUIRE(h.ask(i, 1, some(300, static_cast<unsigned>(i)), 1).has_value());
    for (int i = 0; i < 5; ++i)
        REQUIRE(h.ask(100 + i, 2, some(300, 100 + static_cast<unsigned>(i)), 1).has_value());
    while (h.ended.find(104) == h.ended.end())
        h.step();
    CHECK(h.ended.size() >= 9); // of the first client as many as of the second, one more or less
    CHECK(h.ended.size() <= 11);
    h.run();
}

TEST_CASE("a full queue gives up requests of the client that has the most of them") {
    host h({.max_batch_tokens = 32, .max_sequences = 2, .waiting = 10});
    for (int i = 0; i < 2; ++i)
        REQUIRE(h.ask(i, 1, some(40, static_cast<unsigned>(i)), 100).has_value());
    h.step(); // both answer
    for (int i = 2; i < 12; ++i)
        REQUIRE(h.ask(i, 1, some(40, static_cast<unsigned>(i)), 2).has_value());
    CHECK(h.ask(12, 1, some(40, 12), 2).error().field == "queue");
    std::size_t taken = 0;
    for (int i = 0; i < 8; ++i)
        taken += h.ask(100 + i, 2, some(10, 100 + static_cast<unsigned>(i)), 2).has_value();
    CHECK(taken >= 4);
    CHECK(taken <= 5); // then both have as many
    h.run();
    for (int i = 0; i < 12; ++i)
        if (const auto& failure = h.ended.at(i).failure)
            CHECK(failure->field == "queue");
    std::size_t failed = 0;
    for (const auto& [name, end] : h.ended)
        failed += end.failure.has_value();
    CHECK(failed == taken);
    CHECK_FALSE(h.ended.at(2).failure); // the first that came waits on
    CHECK(h.ended.at(11).failure);      // the last one made place
}

TEST_CASE("where pages are short, a client without an answer does not wait until another one's ends") {
    host h({.max_batch_tokens = 64, .max_sequences = 8, .waiting = 200}, 40); // 640 tokens
    for (int i = 0; i < 8; ++i)
        REQUIRE(h.ask(i, 1, some(40, static_cast<unsigned>(i)), 200).has_value());
    while (h.engine.stats().preempted == 0)
        h.step();
    REQUIRE(h.ended.empty());
    const std::size_t before = h.steps;
    REQUIRE(h.ask(100, 2, some(40, 100), 4).has_value());
    h.run();
    CHECK(h.first.at(100) <= before + 3);
    for (const auto& [name, end] : h.ended)
        CHECK_FALSE(end.failure);
}

TEST_CASE("passes are short while several clients ask, and for ten seconds after") {
    host h({.max_batch_tokens = 64, .shared_batch_tokens = 16, .max_sequences = 8});
    const auto longest = [&](std::chrono::steady_clock::time_point now) { // rows of a step, until all has ended
        std::size_t most = 0, before = h.engine.stats().rows;
        for (bool more = true; more;) {
            more = h.engine.step(now);
            most = std::max(most, h.engine.stats().rows - before);
            before = h.engine.stats().rows;
        }
        return most;
    };
    const std::chrono::steady_clock::time_point start{};
    REQUIRE(h.ask(1, 1, some(200, 1), 4).has_value());
    CHECK(longest(start) == 64);
    REQUIRE(h.ask(2, 1, some(200, 2), 4).has_value());
    REQUIRE(h.ask(3, 2, some(5, 3), 4).has_value());
    CHECK(longest(start) <= 16);
    REQUIRE(h.ask(4, 1, some(200, 4), 4).has_value());
    CHECK(longest(start + std::chrono::seconds(9)) == 16);
    REQUIRE(h.ask(5, 1, some(200, 5), 4).has_value());
    CHECK(longest(start + std::chrono::seconds(20)) == 64);
}

TEST_CASE("where answers are more than rows, each client's answer goes on, and no answer of a client stops for long") {
    host h({.max_batch_tokens = 64, .shared_batch_tokens = 8, .max_sequences = 32});
    std::map<int, std::size_t> last;
    std::size_t longest = 0, lone = 0; // steps between two tokens of an answer, of the first client's and the other's
    h.heard = [&](int name) {
        std::size_t& most = name == 100 ? lone : longest;
        if (last.count(name) > 0)
            most = std::max(most, h.steps - last[name]);
        last[name] = h.steps;
    };
    for (int name = 0; name < 20; ++name)
        REQUIRE(h.ask(name, 1, some(5, static_cast<unsigned>(name)), 60).has_value());
    REQUIRE(h.ask(100, 2, some(5, 100), 30).has_value());
    h.run();
    CHECK(h.ended.size() == 21);
    CHECK(lone == 1);
    CHECK(longest <= 6); // 20 answers have the 7 rows that are left, and some are for prompts
}

TEST_CASE("a client that is alone has all answers and all rows, in order of arrival") {
    host h({.max_batch_tokens = 32, .max_sequences = 8, .waiting = 200});
    for (int i = 0; i < 40; ++i)
        REQUIRE(h.ask(i, 7, some(20, static_cast<unsigned>(i)), 10).has_value());
    std::size_t most = 0;
    while (h.step())
        most = std::max(most, h.engine.stats().running);
    CHECK(most == 8);
    CHECK(h.engine.stats().preempted == 0);
    for (int i = 1; i < 40; ++i)
        CHECK(h.first.at(i) >= h.first.at(i - 1));
}

TEST_CASE("no answer depends on who else asks") {
    const unsigned seed = GENERATE(1u, 2u, 3u, 4u);
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    host h({.max_batch_tokens = 24, .max_sequences = 6, .waiting = 30}, seed < 3 ? 4000 : 60);
    std::map<int, std::pair<tokens, std::size_t>> asked;
    for (int i = 0; i < 120; ++i) {
        const std::uint64_t client = dice() % 3 == 0 ? 1 + dice() % 4 : 0;
        const tokens prompt = some(1 + dice() % 60, static_cast<unsigned>(dice() % 40));
        const std::size_t answer = 1 + dice() % 20;
        if (h.ask(i, client, prompt, answer, 1 + dice() % 2).has_value())
            asked.emplace(i, std::pair(prompt, answer));
        for (std::size_t steps = dice() % 5; steps > 0; --steps)
            h.step();
        REQUIRE(h.store.check().has_value());
    }
    h.run();
    host alone({.max_batch_tokens = 64});
    std::size_t answered = 0;
    for (const auto& [name, of] : asked) {
        const auto& got = h.ended.at(name);
        if (got.failure) {
            CHECK(got.failure->field == "queue");
            continue;
        }
        ++answered;
        REQUIRE(alone.ask(name, 0, of.first, of.second).has_value());
        alone.run();
        for (const auto& answer : got.answers)
            CHECK(answer.ids == alone.ended.at(name).answers[0].ids);
    }
    CHECK(answered > 60);
}

TEST_CASE("requests of a client go by priority, then by when their first token is due, then in order of arrival") {
    using std::chrono::hours;
    host h({.max_batch_tokens = 64, .max_sequences = 1});
    REQUIRE(h.ask(0, 1, some(10, 0), 30).has_value());
    h.step(); // it has the only place
    const auto ask = [&](int name, int priority, std::optional<hours> target) {
        h.change = [=](auto& request) {
            request.priority = priority;
            request.first_token_target = target;
        };
        REQUIRE(h.ask(name, 1, some(10, static_cast<unsigned>(name)), 2).has_value());
    };
    ask(1, 1, hours(1));
    ask(2, 0, {});
    ask(3, 0, hours(2));
    ask(4, 0, hours(1));
    ask(5, -3, {});
    ask(6, 1, {});
    ask(7, 0, {});
    h.run();
    const std::vector<int> order{0, 5, 4, 3, 2, 7, 1, 6};
    for (std::size_t i = 1; i < order.size(); ++i)
        CHECK(h.first.at(order[i - 1]) < h.first.at(order[i]));
    CHECK(h.engine.stats().on_time == 3);
    CHECK(h.engine.stats().late == 0);
    ask(8, 0, hours(-1)); // due before it came
    h.run();
    CHECK(h.engine.stats().late == 1);
}

TEST_CASE("a request of high priority does not go before those of another client") {
    host h({.max_batch_tokens = 64, .max_sequences = 2});
    for (int i = 0; i < 10; ++i) {
        h.change = [](auto& request) { request.priority = -100; };
        REQUIRE(h.ask(i, 1, some(20, static_cast<unsigned>(i)), 8).has_value());
    }
    h.change = {};
    REQUIRE(h.ask(100, 2, some(20, 100), 8).has_value());
    h.run();
    CHECK(h.first.at(100) <= h.first.at(2));
}

TEST_CASE("a client has at most its limit of answers at once") {
    host h({.max_batch_tokens = 64, .max_sequences = 8, .client_sequences = 3});
    CHECK(h.ask(99, 1, some(10, 99), 4, 4).error().field == "n");
    for (int i = 0; i < 7; ++i)
        REQUIRE(h.ask(i, 1, some(10, static_cast<unsigned>(i)), 20).has_value());
    REQUIRE(h.ask(10, 2, some(10, 10), 20, 2).has_value());
    std::size_t most = 0;
    while (h.step()) {
        CHECK(h.engine.stats().running <= 4);
        most = std::max(most, h.engine.stats().running);
    }
    CHECK(most == 4);
    CHECK(h.ended.size() == 8);
}

TEST_CASE("a client begins nothing while it owes tokens, cached ones excepted; others go on") {
    using clock = std::chrono::steady_clock;
    host h({.max_batch_tokens = 256, .max_sequences = 8, .client_tokens_per_second = 100.0});
    const auto run = [&](clock::time_point now, int steps) {
        for (int i = 0; i < steps; ++i) {
            ++h.steps;
            if (!h.engine.step(now))
                return;
        }
    };
    const clock::time_point start(std::chrono::hours(1));
    run(start, 1);
    REQUIRE(h.ask(0, 1, some(150, 0), 50).has_value()); // 200 tokens: two seconds
    run(start, 60);
    CHECK(h.ended.count(0) == 1);
    REQUIRE(h.ask(1, 1, some(10, 1), 2).has_value());
    REQUIRE(h.ask(2, 2, some(10, 2), 2).has_value());
    run(start + std::chrono::milliseconds(1900), 5);
    CHECK(h.ended.count(1) == 0);
    CHECK(h.ended.count(2) == 1);
    run(start + std::chrono::milliseconds(2100), 5);
    CHECK(h.ended.count(1) == 1);
    // A prompt that is cached costs its answer only.
    REQUIRE(h.ask(3, 3, some(150, 0), 10).has_value());
    run(start + std::chrono::seconds(3), 30);
    REQUIRE(h.ask(4, 3, some(10, 4), 2).has_value());
    run(start + std::chrono::milliseconds(3050), 3);
    CHECK(h.ended.count(4) == 0);
    run(start + std::chrono::milliseconds(3150), 5);
    CHECK(h.ended.count(4) == 1);
}

TEST_CASE("a cancelled request owes nothing for what it did not compute") {
    using clock = std::chrono::steady_clock;
    const clock::time_point start(std::chrono::hours(1));
    host h({.max_batch_tokens = 32, .max_sequences = 8, .client_tokens_per_second = 10.0});
    h.engine.step(start);
    const auto long_one = h.ask(0, 1, some(1000, 0), 50);
    REQUIRE(long_one.has_value());
    h.engine.step(start); // 32 rows
    h.engine.cancel(*long_one);
    h.engine.step(start);
    REQUIRE(h.ended.count(0) == 1);
    REQUIRE(h.ask(1, 1, some(5, 1), 1).has_value());
    h.engine.step(start + std::chrono::seconds(2));
    CHECK(h.ended.count(1) == 0);
    h.engine.step(start + std::chrono::seconds(8)); // 80 tokens
    CHECK(h.ended.count(1) == 1);
}

TEST_CASE("with fair tenants a request that runs alone gets the pages of others; one over its quota takes none") {
    for (const std::size_t quota : {100u, 6u}) {
        auto store = kv::make_cache({.shape = small::model().shape(16),
                                     .limit = {.pages = 20},
                                     .id = small::model().id({1, 2}),
                                     .tenants = 12,
                                     .fair_tenants = true});
        using cache = decltype(store);
        kv::thread_pool pool;
        kv::pipeline<cache, kv::transformer> plain(store, small::model(), pool, 32);
        kv::engine<cache, kv::transformer> engine(store, small::model(), plain, {.max_batch_tokens = 32});
        const auto ask = [&](const std::string& who, std::size_t own, std::size_t prompt) {
            std::optional<kv::error> failure;
            kv::engine_request<cache> request{.prompt = some(prompt, static_cast<unsigned>(who.size())),
                                              .tenant = *store.open_tenant(kv::tenant_salt(who), own),
                                              .stop = {.max_tokens = 2}};
            request.on_finish = [&](auto&& end) {
                failure = end.failure;
                for (auto& answer : end.answers)
                    answer.sequence.reset();
            };
            REQUIRE(engine.submit(std::move(request)).has_value());
            while (engine.step({})) {
            }
            return failure;
        };
        for (int i = 1; i <= 10; ++i)
            CHECK_FALSE(ask(std::string(static_cast<std::size_t>(i), 'x'), 100, 30)); // two pages each: all of them
        const auto failed = ask("large", quota, 200);                                 // thirteen pages
        CHECK(failed.has_value() == (quota == 6));
        if (failed) {
            CHECK(failed->field == "quota");
            CHECK(store.stats().evictable >= 20 - 6 - 1); // what the others have cached is still there
        }
        CHECK(store.check().has_value());
        CHECK(store.stats().in_use == 0);
    }
}
