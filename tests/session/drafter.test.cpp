// SPDX-License-Identifier: MIT
#include <kvcache/cache/compose.hpp>
#include <kvcache/session/drafter.hpp>
#include <kvcache/session/engine.hpp>
#include <kvcache/session/generate.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

std::vector<int> guess(const std::vector<int>& text, std::size_t most) {
    std::vector<kv::token_id> ids;
    for (const int each : text)
        ids.push_back(kv::token_id{each});
    std::vector<int> made;
    for (const kv::token_id each : kv::prompt_lookup(ids, most))
        made.push_back(kv::index_of(each));
    return made;
}

using cache = kv::cache<>;
using tokens = std::vector<kv::token_id>;

cache new_cache() {
    return kv::make_cache({small::model().shape(16), {.pages = 200}});
}

struct told {
    std::vector<tokens> answers;
    std::size_t drafted = 0, accepted = 0;
};

// The answers of an engine to three prompts at once, with and without penalties.
told ask(const kv::drafter& drafter, std::size_t draft, float temperature) {
    kv::thread_pool pool(1);
    auto held = new_cache();
    kv::pipeline<cache, kv::transformer> pipeline(held, small::model(), pool, 64);
    kv::engine<cache, kv::transformer> engine(held, small::model(), pipeline, {.max_batch_tokens = 64});
    told made;
    made.answers.resize(6);
    for (unsigned i = 0; i < 3; ++i) {
        kv::engine_request<cache> request{.prompt = small::some(20 + 9 * i, i),
                                          .sampling = {.temperature = temperature, .seed = 5 + i},
                                          .stop = {.max_tokens = 40},
                                          .choices = 2,
                                          .draft = draft,
                                          .drafter = drafter};
        if (i == 2)
            request.sampling.repetition_penalty = 1.3f;
        request.on_finish = [&made, i](kv::engine_outcome<cache>&& end) {
            for (std::size_t c = 0; c < 2; ++c)
                made.answers[2 * i + c] = end.answers[c].ids;
        };
        REQUIRE(engine.submit(std::move(request)));
    }
    while (engine.step({})) {
    }
    made.drafted = engine.stats().drafted;
    made.accepted = engine.stats().accepted;
    CHECK(held.check());
    return made;
}

} // namespace

TEST_CASE("an answer does not depend on its drafter, greedy or sampled") {
    for (const float temperature : {0.0f, 0.9f}) {
        const told plain = ask({}, 0, temperature);
        CHECK(plain.drafted == 0);
        kv::thread_pool pool(1);
        auto held = new_cache();
        kv::model_drafter<cache, kv::transformer> same(held, small::model(), pool);
        std::mt19937 dice(1);
        const std::map<std::string, kv::drafter> drafters{
            {"lookup", kv::draft_by_lookup},
            {"itself", [&](const kv::draft_question& of, tokens& drafted) { same(of, drafted); }},
            {"random",
             [&](const kv::draft_question& of, tokens& drafted) {
                 for (std::size_t i = dice() % (of.most + 1); i > 0; --i)
                     drafted.push_back(kv::token_id{static_cast<std::int32_t>(dice() % 131)});
             }},
            {"too many, outside the vocabulary",
             [&](const kv::draft_question& of, tokens& drafted) {
                 drafted.assign(of.most + 5, kv::token_id{7});
                 drafted[of.most / 2] = kv::token_id{dice() % 2 == 0 ? -1 : 131};
             }},
            {"nothing", [](const kv::draft_question&, tokens&) {}}};
        for (const auto& each : drafters) {
            INFO(each.first << " at " << temperature);
            const told with = ask(each.second, 4, temperature);
            CHECK(with.answers == plain.answers);
            CHECK(with.accepted <= with.drafted);
            if (each.first == "itself") // but for the answers with penalties, which it does not know of
                CHECK(with.accepted > with.drafted / 2);
        }
        CHECK(held.check());
    }
}

TEST_CASE("a model drafts what it would say itself, and nothing where it cannot") {
    kv::thread_pool pool(1);
    auto held = new_cache(), other = new_cache();
    kv::model_drafter<cache, kv::transformer> drafter(held, small::model(), pool);
    const tokens prompt = small::some(30, 9);
    kv::pipeline<cache, kv::transformer> pipeline(other, small::model(), pool);
    for (const float temperature : {0.0f, 0.7f}) {
        const kv::sampler sampling{.temperature = temperature, .seed = 3};
        const auto says = kv::generate(pipeline, prompt, sampling, {.max_tokens = 8},
                                       [](kv::token_id, std::span<const float>) { return true; });
        REQUIRE(says);
        tokens drafted;
        drafter({prompt, 8, sampling, 0}, drafted);
        CHECK(drafted == says->ids);
        drafted.clear();
        drafter({prompt, 0, sampling, 0}, drafted);
        CHECK(drafted.empty());
    }
    const kv::sampler greedy;
    tokens drafted;
    drafter({small::some(4097, 1), 4, greedy, 0}, drafted); // past the model's positions
    CHECK(drafted.empty());
    drafter({tokens(5, kv::token_id{500}), 4, greedy, 0}, drafted);
    CHECK(drafted.empty());
    drafter({small::some(3500, 2), 4, greedy, 0}, drafted); // past the cache
    CHECK(drafted.empty());
    CHECK(held.check());
}

TEST_CASE("a guess is what followed the latest earlier place of the longest tail") {
    CHECK(guess({}, 4).empty());
    CHECK(guess({1}, 4).empty());
    CHECK(guess({1, 2, 3}, 4).empty());
    CHECK(guess({1, 1}, 4) == std::vector{1});
    CHECK(guess({5, 1, 2, 3, 9, 1, 2, 3}, 2) == std::vector{9, 1});
    CHECK(guess({1, 2, 3, 7, 4, 2, 3, 8, 1, 2, 3}, 1) == std::vector{7}); // three common tokens before two
    CHECK(guess({2, 3, 7, 2, 3, 8, 4, 2, 3}, 1) == std::vector{8});       // the latest of equals
    CHECK(guess({4, 6, 4}, 9) == std::vector{6, 4});
    CHECK(guess({1, 2, 1, 2}, 0).empty());
}
