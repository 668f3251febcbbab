// SPDX-License-Identifier: MIT
// Continuous batching over layer groups: answers have the tokens and the scores that they have alone.
#include <kvcache/session/engine.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/log_probabilities.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recurrent_fixture.hpp"
#include <catch2/catch.hpp>

using namespace recurrent;

namespace {

struct asked {
    tokens prompt = {};
    kv::sampler sampling = {};
    std::size_t most = 1, choices = 1;
};

struct told {
    std::vector<tokens> ids = {};                // by choice
    std::vector<std::vector<float>> scores = {}; // by choice
    std::string failure = {};
    std::size_t reused = 0, drafted = 0;

    explicit told(std::size_t choices) : ids(choices), scores(choices) {}
};

told plainly(const kv::transformer& model, const asked& what) {
    told made(what.choices);
    for (std::size_t c = 0; c < what.choices; ++c) {
        auto cache = cache_of(model, 16, 32u << 20);
        runner run(cache, model);
        kv::sampler sampling = what.sampling;
        sampling.choice += c;
        const auto said = kv::generate(run.pipeline, what.prompt, sampling, kv::stop_criteria{.max_tokens = what.most},
                                       [&](kv::token_id token, std::span<const float> logits) {
                                           made.scores[c].push_back(kv::log_probabilities(logits).of(token));
                                           return true;
                                       });
        REQUIRE((said ? std::string() : said.error().message) == "");
        made.ids[c] = said->ids;
    }
    return made;
}

template <class Cache>
auto request_of(const asked& what, told& into, std::size_t draft = 0) {
    return kv::engine_request<Cache>{.prompt = what.prompt,
                                     .sampling = what.sampling,
                                     .stop = {.max_tokens = what.most},
                                     .choices = what.choices,
                                     .draft = draft,
                                     .log_probabilities = 1,
                                     .on_token =
                                         [&into](const kv::generated_token& token) {
                                             into.ids[token.choice].push_back(token.token);
                                             into.scores[token.choice].push_back(*token.log_probability);
                                             return kv::token_action::go_on;
                                         },
                                     .on_finish =
                                         [&into](kv::engine_outcome<Cache>&& end) {
                                             into.failure = end.failure ? end.failure->message : "";
                                             into.reused = end.reused;
                                             into.drafted = end.drafted;
                                         }};
}

// Answers of an engine to requests that arrive `apart` steps apart. `preempted` becomes the number of preemptions.
std::vector<told> answers(const kv::transformer& model, const std::vector<asked>& all, std::size_t bytes,
                          std::size_t apart, std::size_t rows, std::size_t draft = 0,
                          std::size_t* preempted = nullptr) {
    auto cache = cache_of(model, 16, bytes);
    using cache_type = decltype(cache);
    std::vector<told> made;
    for (const asked& one : all)
        made.emplace_back(one.choices);
    {
        runner run(cache, model, 64, 2);
        kv::engine<cache_type, kv::transformer> engine(cache, model, run.pipeline, {.max_batch_tokens = rows});
        const auto step = [&] {
            const bool more = engine.step(std::chrono::steady_clock::time_point{});
            check(cache);
            return more;
        };
        for (std::size_t i = 0; i < all.size(); ++i) {
            REQUIRE(engine.submit(request_of<cache_type>(all[i], made[i], draft)).has_value());
            for (std::size_t steps = 0; steps < apart; ++steps)
                step();
        }
        for (std::size_t steps = 0; step(); ++steps)
            REQUIRE(steps < 10'000);
        if (preempted != nullptr)
            *preempted = engine.stats().preempted;
    }
    CHECK(cache.stats().in_use == 0);
    return made;
}

void check_same(const kv::transformer& model, const std::vector<asked>& all, const std::vector<told>& made) {
    for (std::size_t i = 0; i < all.size(); ++i) {
        CAPTURE(i);
        CHECK(made[i].failure == "");
        const told want = plainly(model, all[i]);
        CHECK(made[i].ids == want.ids);
        CHECK(made[i].scores == want.scores);
    }
}

// Requests of which many begin as others do.
std::vector<asked> some_requests(const kv::transformer& model, std::size_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<asked> all(count);
    for (std::size_t i = 0; i < count; ++i) {
        asked& one = all[i];
        if (i > 0 && random() % 3 > 0) {
            const tokens& other = all[random() % i].prompt;
            one.prompt = part(other, 0, 1 + random() % other.size());
        }
        const tokens more = some_tokens(model, 1 + random() % 90, static_cast<unsigned>(seed + i));
        one.prompt.insert(one.prompt.end(), more.begin(), more.end());
        one.sampling = {.temperature = i % 2 == 0 ? 0.0F : 1.0F, .seed = random()};
        one.most = 1 + random() % 20;
        one.choices = random() % 4 == 0 ? 3 : 1;
    }
    return all;
}

} // namespace

TEST_CASE("an engine over layer groups answers as each request would be answered alone") {
    for (std::size_t which = 0; which < models; ++which)
        for (const std::size_t apart : {0u, 3u}) {
            CAPTURE(which, apart);
            const kv::transformer& model = recurrent_model(which);
            const auto all = some_requests(model, 14, static_cast<std::uint32_t>(20 + which));
            const auto made = answers(model, all, 32u << 20, apart, 48);
            check_same(model, all, made);
            CHECK(std::any_of(made.begin(), made.end(), [](const told& one) { return one.reused > 0; }));
        }
}

TEST_CASE("an engine over layer groups preempts requests where memory is short, with the same answers") {
    for (std::size_t which = 0; which < models; ++which) {
        CAPTURE(which);
        const kv::transformer& model = recurrent_model(which);
        const auto all = some_requests(model, 10, static_cast<std::uint32_t>(40 + which));
        // Room for the longest request and little more.
        std::size_t longest = 0;
        for (const asked& one : all)
            longest = std::max(longest, one.prompt.size() + one.choices * (one.most + 16));
        const std::size_t bytes = model.layout(16).bytes(longest + 64, sizeof(float));
        std::size_t preempted = 0;
        check_same(model, all, answers(model, all, bytes + bytes / 2, 1, 64, 0, &preempted));
        CHECK(preempted > 0);
    }
}

TEST_CASE("an engine does not draft over recurrent layers, with the same answers") {
    const kv::transformer& model = recurrent_model(1);
    std::vector<asked> all(1);
    for (int i = 0; i < 60; ++i)
        all[0].prompt.push_back(kv::token_id{i % 5 + 3});
    all[0].most = 20;
    const auto made = answers(model, all, 32u << 20, 0, 48, 4);
    CHECK(made[0].drafted == 0);
    check_same(model, all, made);
}
