// SPDX-License-Identifier: MIT
#include <kvcache/cache.hpp>
#include <kvcache/session/engine.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

using request = kv::engine_request<cache>;
using outcome = kv::engine_outcome<cache>;
using engine = kv::engine<cache, kv::transformer>;
using at = std::chrono::steady_clock::time_point;

// A request that can be submitted more than once.
struct asked {
    tokens prompt = {};
    kv::sampler sampling = {};
    kv::stop_criteria stop = {};
    std::size_t choices = 1;
};

struct told {
    std::vector<tokens> ids = {};                // by choice
    std::vector<std::vector<float>> scores = {}; // by choice
    std::vector<kv::finish_reason> finish_reason = {};
    std::optional<kv::error> failure = {};
    std::size_t reused = 0, prefilled = 0, drafted = 0, accepted = 0;
};

// An engine, and the results of its requests.
struct fixture {
    explicit fixture(const kv::transformer& model, kv::engine_limits limits = {}, std::size_t pages = 4096,
                     std::size_t threads = 1)
        : here(model, 16, threads, 64, pages), runs(here.store, model, here.pipeline, limits) {}
    ~fixture() { CHECK(here.store.stats().in_use == 0); }

    request make(const asked& what, told& into, std::size_t draft = 0) {
        into = {};
        into.ids.resize(what.choices);
        into.scores.resize(what.choices);
        return {.prompt = what.prompt,
                .sampling = what.sampling,
                .stop = what.stop,
                .choices = what.choices,
                .draft = draft,
                .log_probabilities = 2,
                .on_token =
                    [this, &into](const kv::generated_token& token) {
                        peak = std::max(peak, here.store.stats().in_use);
                        CHECK(token.index == into.ids[token.choice].size());
                        into.ids[token.choice].push_back(token.token);
                        into.scores[token.choice].push_back(*token.log_probability);
                        return kv::token_action::go_on;
                    },
                .on_finish =
                    [&into](outcome&& end) {
                        for (std::size_t c = 0; c < end.answers.size(); ++c) {
                            CHECK(end.answers[c].ids == into.ids[c]);
                            into.finish_reason.push_back(end.answers[c].finish_reason);
                        }
                        into.failure = end.failure;
                        into.reused = end.reused;
                        into.prefilled = end.prefilled;
                        into.drafted = end.drafted;
                        into.accepted = end.accepted;
                    }};
    }

    std::vector<told> answer(const std::vector<asked>& all, std::size_t draft = 0) {
        std::vector<told> made(all.size());
        for (std::size_t i = 0; i < all.size(); ++i)
            REQUIRE(runs.submit(make(all[i], made[i], draft)).has_value());
        for (std::size_t steps = 0; runs.step(at{}); ++steps) {
            peak = std::max(peak, here.store.stats().in_use);
            REQUIRE(steps < 10000);
        }
        return made;
    }

    host here;
    engine runs;
    std::size_t peak = 0; // maximum pages in use, also within a step
};

// The answer of a request that runs alone, by the plain decode loop.
told plainly(const kv::transformer& model, const asked& what) {
    told made;
    for (std::size_t c = 0; c < what.choices; ++c) {
        host alone(model, 16, 1, 64, 64);
        kv::sampler sampling = what.sampling;
        sampling.choice += c;
        made.scores.emplace_back();
        auto said = kv::generate(alone.pipeline, what.prompt, sampling, what.stop,
                                 [&](kv::token_id token, std::span<const float> logits) {
                                     made.scores.back().push_back(kv::log_probabilities(logits).of(token));
                                     return true;
                                 });
        REQUIRE(said.has_value());
        made.ids.push_back(said->ids);
        made.finish_reason.push_back(said->stopped ? kv::finish_reason::stopped : kv::finish_reason::length);
    }
    return made;
}

void check_same(const std::vector<told>& made, const std::vector<told>& wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        INFO("request " << i);
        CHECK_FALSE(made[i].failure.has_value());
        CHECK(made[i].ids == wanted[i].ids);
        CHECK(made[i].scores == wanted[i].scores);
        CHECK(made[i].finish_reason == wanted[i].finish_reason);
    }
}

// Prompts with common prefixes, and every kind of sampling.
std::vector<asked> a_day(const kv::transformer& model) {
    const tokens common = some_tokens(model, 40, 1), other = some_tokens(model, 70, 2);
    const tokens phrase = some_tokens(model, 6, 3);
    tokens song;
    for (int i = 0; i < 8; ++i)
        song = joined(song, phrase);
    return {
        {.prompt = joined(common, some_tokens(model, 5, 4)), .stop = {.max_tokens = 12}},
        {.prompt = song, .stop = {.max_tokens = 30}},
        {.prompt = joined(common, some_tokens(model, 30, 5)),
         .sampling = {.temperature = 0.9f, .seed = 7, .top_k = 20, .top_p = 0.9f},
         .stop = {.max_tokens = 20}},
        {.prompt = joined(song, phrase),
         .sampling = {.temperature = 0.3f, .seed = 8, .repetition_penalty = 1.1f, .frequency_penalty = 0.2f},
         .stop = {.max_tokens = 25}},
        {.prompt = other,
         .sampling = {.temperature = 1.3f, .seed = 9, .min_p = 0.02f},
         .stop = {.max_tokens = 9},
         .choices = 3},
        {.prompt = common, .stop = {.max_tokens = 0}},
        {.prompt = joined(other, common),
         .sampling = {.temperature = 0.7f, .seed = 5},
         .stop = {.max_tokens = 40, .stop_tokens = {kv::token_id{3}, kv::token_id{17}, kv::token_id{90}}}},
        {.prompt = {kv::token_id{1}}, .stop = {.max_tokens = 5}, .choices = 2},
    };
}

} // namespace

TEST_CASE("a request's tokens and their scores do not depend on its company") {
    const auto& model = each_model();
    const auto all = a_day(model);
    std::vector<told> wanted;
    for (const asked& each : all)
        wanted.push_back(plainly(model, each));

    for (const std::size_t i : {std::size_t{0}, std::size_t{3}, std::size_t{4}}) {
        fixture alone(model);
        check_same(alone.answer({all[i]}), {wanted[i]});
    }
    for (const std::size_t rows : {2u, 48u, 400u}) {
        INFO(rows << " rows a step");
        fixture busy(model, {.max_batch_tokens = rows});
        check_same(busy.answer(all), wanted);    // cold, together
        check_same(busy.answer(all), wanted);    // warm
        check_same(busy.answer(all, 5), wanted); // with drafts
    }
    fixture guessing(model, {.max_batch_tokens = 50}, 4096, 2);
    const auto guessed = guessing.answer(all, 4);
    check_same(guessed, wanted);
    CHECK(guessing.runs.stats().drafted > 0);
}

TEST_CASE("where pages are short the youngest request waits, and no answer changes") {
    const auto& model = random_model();
    const auto all = a_day(model);
    std::vector<told> wanted;
    for (const asked& each : all)
        wanted.push_back(plainly(model, each));
    for (const std::size_t draft : {0u, 3u}) {
        fixture wide(model, {.max_batch_tokens = 64});
        check_same(wide.answer(all, draft), wanted);
        CHECK(wide.runs.stats().preempted == 0);
        for (const std::size_t pages : {std::size_t{14}, std::size_t{18}, wide.peak - 1}) {
            INFO(pages << " pages of " << wide.peak << ", guessing " << draft);
            fixture tight(model, {.max_batch_tokens = 64}, pages);
            check_same(tight.answer(all, draft), wanted);
            CHECK(tight.runs.stats().preempted > 0);
        }
    }
}

TEST_CASE("prompt lookup guesses right where a text repeats itself") {
    const auto& model = tiny_model();
    tokens song;
    for (int i = 0; i < 10; ++i)
        song = joined(song, some_tokens(model, 5, 3));
    fixture here(model);
    const auto made = here.answer({{.prompt = song, .stop = {.max_tokens = 60}}}, 6);
    CHECK(made[0].accepted > 0);
    CHECK(made[0].accepted <= made[0].drafted);
}

TEST_CASE("prompts that begin alike are run once, also when they arrive together") {
    const auto& model = random_model();
    const tokens common = some_tokens(model, 200, 1);
    std::vector<asked> all;
    for (int user = 0; user < 16; ++user)
        all.push_back({.prompt = joined(joined(common, {kv::token_id{user}}),
                                        some_tokens(model, 6, 10 + static_cast<unsigned>(user))),
                       .stop = {.max_tokens = 3}});
    for (const std::size_t rows : {2u, 10u, 64u, 400u}) {
        INFO(rows << " rows a step");
        fixture here(model, {.max_batch_tokens = rows});
        const auto made = here.answer(all);
        std::size_t prefilled = 0;
        for (const told& each : made) {
            CHECK(each.reused + each.prefilled == 207);
            prefilled += each.prefilled;
        }
        CHECK(prefilled == 207 + 15 * 7); // the tokens in the middle of a page are shared too
    }
}

TEST_CASE("a request that cannot be had is refused by name, and nothing is called") {
    const auto& model = random_model();
    fixture here(model, {.max_sequences = 4, .waiting = 2});
    const auto field = [&](asked what) {
        told into;
        auto asks = here.make(what, into);
        asks.on_finish = [](outcome&&) { FAIL("not to be called"); };
        const auto made = here.runs.submit(std::move(asks));
        return made ? std::string() : made.error().field;
    };
    CHECK(field({}) == "prompt");
    CHECK(field({.prompt = {kv::token_id{131}}}) == "prompt");
    CHECK(field({.prompt = {kv::token_id{-1}}}) == "prompt");
    CHECK(field({.prompt = some_tokens(model, 4097, 1)}) == "max_positions");
    CHECK(field({.prompt = {kv::token_id{1}}, .choices = 5}) == "n");
    CHECK(field({.prompt = {kv::token_id{1}}, .choices = 0}) == "n");
    CHECK(field({.prompt = {kv::token_id{1}}, .sampling = {.top_p = 2.0f}}) == "top_p");
    told a, b;
    REQUIRE(here.runs.submit(here.make({.prompt = {kv::token_id{1}}, .stop = {.max_tokens = 2}}, a)).has_value());
    REQUIRE(here.runs.submit(here.make({.prompt = {kv::token_id{2}}, .stop = {.max_tokens = 2}}, b)).has_value());
    CHECK(field({.prompt = {kv::token_id{1}}}) == "queue");
    while (here.runs.step(at{})) {
    }
    CHECK(a.ids[0].size() == 2);
    CHECK(b.ids[0].size() == 2);
    CHECK(here.runs.stats().refused == 1);
}

TEST_CASE("requests end when they are cancelled, late, stopped by their reader, or too large, and others continue") {
    const auto& model = random_model();
    const asked longer{.prompt = some_tokens(model, 20, 1), .stop = {.max_tokens = 50}};
    const told wanted = plainly(model, longer);
    fixture here(model, {.max_batch_tokens = 32}, 40);
    told whole, cancelled, late, enough, stopped, large, refused;
    REQUIRE(here.runs.submit(here.make(longer, whole)).has_value());
    const auto id = here.runs.submit(here.make(longer, cancelled));
    REQUIRE(id.has_value());
    auto hurried = here.make(longer, late);
    hurried.deadline = at{} + std::chrono::seconds(5);
    REQUIRE(here.runs.submit(std::move(hurried)).has_value());
    auto brief = here.make(longer, enough);
    brief.on_token = [&](const kv::generated_token& token) {
        enough.ids[0].push_back(token.token);
        return token.index == 3 ? kv::token_action::enough : kv::token_action::go_on;
    };
    REQUIRE(here.runs.submit(std::move(brief)).has_value());
    auto leaves = here.make({.prompt = longer.prompt, .stop = {.max_tokens = 50}, .choices = 2}, stopped, 4);
    leaves.on_token = [&](const kv::generated_token& token) {
        stopped.ids[token.choice].push_back(token.token);
        return token.index == 4 ? kv::token_action::cancel : kv::token_action::go_on;
    };
    REQUIRE(here.runs.submit(std::move(leaves)).has_value());
    REQUIRE(here.runs.submit(here.make({.prompt = some_tokens(model, 900, 2)}, large)).has_value()); // 57 pages
    for (int i = 0; i < 6; ++i)
        (void)here.runs.step(at{});
    here.runs.cancel(*id);
    (void)here.runs.step(at{} + std::chrono::seconds(5));
    while (here.runs.step(at{})) {
    }
    CHECK(whole.ids == wanted.ids);
    CHECK(whole.scores == wanted.scores);
    CHECK(cancelled.finish_reason == std::vector{kv::finish_reason::cancelled});
    CHECK(late.finish_reason == std::vector{kv::finish_reason::expired});
    CHECK(enough.finish_reason == std::vector{kv::finish_reason::stopped});
    CHECK(enough.ids[0] == tokens(wanted.ids[0].begin(), wanted.ids[0].begin() + 4));
    CHECK(stopped.finish_reason == std::vector(2, kv::finish_reason::cancelled));
    CHECK(large.finish_reason == std::vector{kv::finish_reason::failed});
    REQUIRE(large.failure.has_value());
    CHECK(large.failure->code == kv::error_code::out_of_memory);
    REQUIRE(here.runs.submit(here.make(longer, refused)).has_value());
    here.runs.close();
    CHECK(refused.finish_reason == std::vector{kv::finish_reason::cancelled});
    CHECK(here.runs.submit(here.make(longer, refused)).error().field == "engine");
}

TEST_CASE("idle sessions give their pages before a request has to wait") {
    const auto& model = random_model();
    fixture here(model, {}, 12);
    std::optional<prefill_result> idle(here.here.prefill(some_tokens(model, 150, 8), kv::logits_mode::last));
    here.runs.set_relief([&] {
        const bool had = idle.has_value();
        idle.reset();
        return had;
    });
    const asked what{.prompt = some_tokens(model, 100, 1), .stop = {.max_tokens = 5}};
    check_same(here.answer({what}), {plainly(model, what)});
    CHECK_FALSE(idle.has_value());
}

TEST_CASE("an engine continues from a sequence that it is given") {
    const auto& model = random_model();
    const asked what{.prompt = some_tokens(model, 100, 1), .stop = {.max_tokens = 5}};
    fixture here(model);
    auto held = here.here.prefill(tokens(what.prompt.begin(), what.prompt.begin() + 75), kv::logits_mode::last);
    told into;
    auto asks = here.make(what, into);
    asks.known = held.sequence.fork(75);
    REQUIRE(here.runs.submit(std::move(asks)).has_value());
    while (here.runs.step(at{})) {
    }
    check_same({into}, {plainly(model, what)});
    CHECK(into.reused == 75);
    CHECK(into.prefilled == 25);
    auto foreign = here.make({.prompt = some_tokens(model, 100, 2)}, into);
    foreign.known = held.sequence.fork(75);
    CHECK_FALSE(here.runs.submit(std::move(foreign)).has_value());
}

TEST_CASE("a request that waits gives the sequence it continues from to one that runs") {
    const auto& model = random_model();
    fixture here(model, {.max_sequences = 1}, 12);
    const asked large{.prompt = some_tokens(model, 150, 1), .stop = {.max_tokens = 5}},
        waits{.prompt = some_tokens(model, 100, 2), .stop = {.max_tokens = 5}};
    std::vector<told> got(2);
    auto second = here.make(waits, got[1]);
    second.known = std::move(
        here.here.prefill(tokens(waits.prompt.begin(), waits.prompt.begin() + 75), kv::logits_mode::last).sequence);
    REQUIRE(here.runs.submit(here.make(large, got[0])).has_value());
    REQUIRE(here.runs.submit(std::move(second)).has_value());
    while (here.runs.step(at{})) {
    }
    check_same(got, {plainly(model, large), plainly(model, waits)});
}

TEST_CASE("a request that runs alone waits for pages that the host holds, as long as it has patience") {
    const auto& model = random_model();
    const asked what{.prompt = some_tokens(model, 100, 1), .stop = {.max_tokens = 5}};
    for (const bool released : {true, false}) {
        fixture here(model, {.patience = released ? std::chrono::hours(1) : std::chrono::milliseconds(10)}, 12);
        std::optional<prefill_result> idle(here.here.prefill(some_tokens(model, 150, 8), kv::logits_mode::last));
        told into;
        REQUIRE(here.runs.submit(here.make(what, into)).has_value());
        for (int steps = 0; here.runs.step(at{}); ++steps)
            if (released && steps == 20)
                idle.reset();
        if (released)
            check_same({into}, {plainly(model, what)});
        else
            CHECK(into.finish_reason == std::vector{kv::finish_reason::failed});
    }
}

TEST_CASE("the sequence a request continues from is shared only as far as it is exact and cacheable") {
    const auto& model = random_model();
    for (const bool forgets : {true, false}) {
        fixture here(model);
        auto held = here.here.prefill(some_tokens(model, 100, 1), kv::logits_mode::last);
        auto own = forgets ? held.sequence.erase_range(4, 40) : kv::result<cache::sequence>(here.here.store.open());
        REQUIRE(own.has_value());
        if (!forgets) {
            own->set_cacheable_limit(20);
            (void)here.here.extend(*own, some_tokens(model, 70, 2));
        }
        const tokens prompt = joined({own->tokens().begin(), own->tokens().end()}, some_tokens(model, 9, 3));
        const asked what{.prompt = prompt, .stop = {.max_tokens = 8}};
        told first, second;
        auto asks = here.make(what, first);
        asks.known = std::move(*own);
        REQUIRE(here.runs.submit(std::move(asks)).has_value());
        REQUIRE(here.runs.submit(here.make(what, second)).has_value());
        while (here.runs.step(at{})) {
        }
        check_same({second}, {plainly(model, what)});
        CHECK(second.reused <= (forgets ? 4u : 20u));
    }
}

TEST_CASE("requests of different tenants run together and reuse nothing of each other") {
    const auto& model = random_model();
    auto tenants =
        kv::make_cache({.shape = model.shape(16), .limit = {.bytes = 512 * host::bytes(model, 16)}, .tenants = 2});
    using cache = decltype(tenants);
    const std::vector<kv::tenant> whose{tenants.open_tenant(), *tenants.open_tenant(kv::tenant_salt("a"), 512),
                                        *tenants.open_tenant(kv::tenant_salt("b"), 512)};
    kv::thread_pool pool(1);
    kv::pipeline<cache, kv::transformer> pipeline(tenants, model, pool, 64);
    kv::engine<cache, kv::transformer> runs(tenants, model, pipeline, {.max_batch_tokens = 32});
    const tokens prompt = some_tokens(model, 70, 1);
    CHECK_THROWS_AS(runs.submit({.prompt = prompt}), kv::contract_violation); // without a tenant
    const told wanted = plainly(model, {.prompt = prompt, .stop = {.max_tokens = 8}});
    for (int round = 0; round < 2; ++round) {
        std::vector<kv::engine_outcome<cache>> ends(2 * whose.size());
        for (std::size_t i = 0; i < ends.size(); ++i)
            REQUIRE(runs.submit({.prompt = prompt,
                                 .tenant = whose[i % whose.size()],
                                 .stop = {.max_tokens = 8},
                                 .on_finish = [&ends, i](auto&& end) { ends[i] = std::move(end); }}));
        while (runs.step(at{})) {
        }
        for (std::size_t i = 0; i < ends.size(); ++i) {
            INFO("round " << round << ", request " << i);
            REQUIRE(ends[i].answers.size() == 1);
            CHECK(ends[i].answers[0].ids == wanted.ids[0]);
            CHECK(ends[i].reused == (round == 0 && i < whose.size() ? 0 : 69)); // the first of each tenant computes
        }
    }
    CHECK(tenants.check());
}

TEST_CASE(
    "every token of a prompt is scored, also when it is cached, shared, drafted, preempted or run in small steps") {
    const auto& model = random_model();
    const tokens common = some_tokens(model, 40, 1);
    std::vector<asked> all;
    for (std::uint32_t i = 0; i < 6; ++i)
        all.push_back({.prompt = joined(common, some_tokens(model, 1 + 17 * i, 2 + i)),
                       .sampling = {.temperature = 0.8f, .seed = i},
                       .stop = {.max_tokens = i == 1 ? 0u : 6u},
                       .choices = 1 + i % 3});
    all.push_back({.prompt = {common[0]}, .stop = {.max_tokens = 2}});
    for (const std::size_t rows : {2u, 7u, 64u, 256u})
        for (const std::size_t pages : {20u, 4096u}) {
            fixture here(model, {.max_batch_tokens = rows}, pages);
            for (int round = 0; round < 2; ++round) {
                std::vector<told> made(all.size());
                std::vector<std::vector<kv::generated_token>> scored(all.size());
                for (std::size_t i = 0; i < all.size(); ++i) {
                    auto asks = here.make(all[i], made[i], i % 2 * 4);
                    asks.score_prompt = i != 4; // one that reuses what the others compute
                    asks.on_finish = [tell = std::move(asks.on_finish), &into = scored[i]](outcome&& end) {
                        into = std::move(end.prompt);
                        tell(std::move(end));
                    };
                    REQUIRE(here.runs.submit(std::move(asks)));
                }
                while (here.runs.step(at{})) {
                }
                for (std::size_t i = 0; i < all.size(); ++i) {
                    INFO(rows << " rows, " << pages << " pages, round " << round << ", request " << i);
                    check_same({made[i]}, {plainly(model, all[i])});
                    REQUIRE(scored[i].size() == (i != 4 ? all[i].prompt.size() : 0));
                    if (i == 4)
                        continue;
                    CHECK(made[i].reused == 0);
                    CHECK_FALSE(scored[i][0].log_probability);
                    const kv::matrix logits = cold(model, all[i].prompt);
                    for (std::size_t t = 1; t < scored[i].size(); ++t) {
                        const kv::log_probabilities wanted(kv::row_of(logits, t - 1));
                        CHECK(scored[i][t].token == all[i].prompt[t]);
                        CHECK(scored[i][t].index == t);
                        CHECK(*scored[i][t].log_probability == wanted.of(all[i].prompt[t]));
                        CHECK(scored[i][t].top == wanted.top(2));
                    }
                }
            }
        }
}

TEST_CASE("many threads submit to one engine") {
    const auto& model = random_model();
    const auto all = a_day(model);
    std::vector<told> wanted;
    for (const asked& each : all)
        wanted.push_back(plainly(model, each));
    fixture here(model, {.max_batch_tokens = 48, .waiting = 1000}, 60);
    std::vector<told> made(4 * all.size());
    std::atomic<std::size_t> done = 0;
    std::jthread running([&](std::stop_token stop) { here.runs.run(stop); });
    {
        std::vector<std::jthread> users;
        for (std::size_t user = 0; user < 4; ++user)
            users.emplace_back([&, user] {
                for (std::size_t i = 0; i < all.size(); ++i) {
                    told& into = made[user * all.size() + i];
                    auto asks = here.make(all[i], into, user);
                    asks.on_finish = [&done, tell = std::move(asks.on_finish)](outcome&& end) {
                        tell(std::move(end));
                        ++done;
                        done.notify_one();
                    };
                    if (!here.runs.submit(std::move(asks)))
                        std::abort();
                }
            });
    }
    for (std::size_t now = done; now < made.size(); now = done)
        done.wait(now);
    running.request_stop();
    running.join();
    for (std::size_t user = 0; user < 4; ++user)
        check_same({made.begin() + static_cast<std::ptrdiff_t>(user * all.size()),
                    made.begin() + static_cast<std::ptrdiff_t>((user + 1) * all.size())},
                   wanted);
}
