// SPDX-License-Identifier: MIT
// Conversations with a model of Qwen3.5's layout, with the sizes of its heads and states: what a turn, an edit, a
// branch and a regenerated answer compute again, and that every logit has the bits of a cold run.
#include <kvcache/chat.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "promise_fixture.hpp"
#include "support/folders.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

constexpr std::size_t page = 16, answers = 2, interval = answers * page;

kv::transformer hybrid(std::size_t vocabulary) {
    kv::model_config config = small::config_of(4);
    config.architecture = "qwen35";
    config.vocabulary = vocabulary;
    config.heads = 16;
    config.kv_heads = 4;
    config.head_dim = 256;
    config.rotary_dim = 64;
    config.qk_norm = kv::head_norm::each;
    config.gated_attention = true;
    config.mixer = kv::layer_mixer::gated_delta;
    config.recurrence = {.taps = 4, .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
    config.each_layer.resize(4);
    for (std::size_t i = 0; i < 3; ++i)
        config.each_layer[i].recurrent = true;
    REQUIRE(config.check());
    return kv::make_random_model(config, 11);
}

auto open_cache(const kv::transformer& model) {
    return kv::make_cache({.limit = {.bytes = std::size_t{1} << 30}, .id = model.id({1, 2})},
                          kv::layers::grouped{.layout = model.layout(page)});
}

kv::token_id likeliest(const kv::matrix& logits) {
    Eigen::Index best = 0;
    logits.row(logits.rows() - 1).maxCoeff(&best);
    return kv::token_id{static_cast<std::int32_t>(best)};
}

} // namespace

TEST_CASE("a conversation of ten turns over recurrent layers computes at most one interval of snapshots again") {
    const kv::transformer model = hybrid(131);
    CHECK(model.layout(page).groups[*model.state_group()].state_bytes == 3 * 4 * (3 * 8192 + 32 * 128 * 128));
    auto cache = open_cache(model);
    kv::thread_pool pool(2);
    kv::pipeline pipeline(cache, model, pool, 64, {.answers = answers});
    tokens history;
    const auto ask = [&](const tokens& prompt, std::size_t known) {
        auto made = pipeline.prefill(prompt, kv::logits_mode::last);
        REQUIRE((made ? std::string() : made.error().message) == "");
        CHECK(made->reused + interval + page > known);
        auto fresh = open_cache(model);
        kv::thread_pool one(1);
        kv::pipeline cold(fresh, model, one, 1024);
        CHECK(same_bits(made->logits, cold.prefill(prompt, kv::logits_mode::last)->logits));
        return std::move(*made);
    };
    std::vector<std::size_t> turns;
    for (unsigned turn = 0; turn < 10; ++turn) {
        CAPTURE(turn);
        const std::size_t known = history.empty() ? 0 : history.size() - 1;
        history = joined(std::move(history), some_tokens(model, 11 + turn, turn));
        turns.push_back(history.size());
        auto made = ask(history, known);
        kv::matrix logits = std::move(made.logits);
        for (int i = 0; i < 21; ++i) {
            history.push_back(likeliest(logits));
            auto next = pipeline.extend(made.sequence, std::span(history).last(1));
            REQUIRE(next);
            logits = std::move(*next);
        }
        if (turn == 4) { // regenerated: the prompt again
            const auto again = ask(tokens(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(turns.back())),
                                   turns.back() - 1);
            CHECK(again.reused == (turns.back() - 1) / page * page);
        }
        if (turn == 6) { // a fork of the whole conversation goes on without computing anything again
            auto branch = made.sequence.fork(made.sequence.size());
            CHECK(branch.size() == history.size());
            const tokens more = some_tokens(model, 9, 77);
            const auto rows = pipeline.extend(branch, more);
            REQUIRE(rows);
            auto fresh = open_cache(model);
            kv::pipeline cold(fresh, model, pool, 1024);
            CHECK(same_bits(*rows, cold.prefill(joined(history, more), kv::logits_mode::last)->logits));
        }
    }
    for (const std::size_t turn : {8u, 3u, 1u}) { // edits of what the user said, then another one that parts there
        CAPTURE(turn);
        const tokens before(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(turns[turn] - 5));
        (void)ask(joined(before, some_tokens(model, 30, static_cast<unsigned>(100 + turn))), before.size());
        const auto second =
            ask(joined(before, some_tokens(model, 25, static_cast<unsigned>(200 + turn))), before.size());
        CHECK(second.reused == before.size() / page * page);
    }
    CHECK(cache.check());
}

TEST_CASE("a chat over recurrent layers runs at most a page again where its template leaves reasoning out") {
    const std::filesystem::path worlds = test_folders::project() / "examples" / "models" / "worlds-2m";
    const auto words = kv::tokenizer::open(worlds);
    REQUIRE(words);
    const auto form = kv::chat_template::parse(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}{{ "
        "m['content'].split('e')[-1] }}{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor "
        "%}<|im_start|>assistant\n",
        {});
    REQUIRE(form);
    auto chat = kv::open_chat(kv::loaded_model{hybrid(words->vocabulary_size()), {}}, *words, *form,
                              {.stop = {.max_tokens = 12}, .page_tokens = page, .threads = 2}, kv::layers::grouped{});
    REQUIRE((chat ? std::string() : chat.error().message) == "");
    std::size_t rerun = 0;
    for (int turn = 0; turn < 6; ++turn) {
        CAPTURE(turn);
        const auto reply = chat->say("Where is the kite, and who has it now?");
        REQUIRE((reply ? std::string() : reply.error().message) == "");
        CHECK(reply->rerun <= page); // a snapshot is where the prompt before ended
        CHECK((turn == 0 || reply->changed > 0));
        CHECK((turn == 0 || reply->reused > 0));
        rerun += reply->rerun;
    }
    CHECK(rerun > 0);
}

TEST_CASE("a chat over recurrent layers says the same with other pages and threads") {
    const std::filesystem::path worlds = test_folders::project() / "examples" / "models" / "worlds-2m";
    const auto words = kv::tokenizer::open(worlds);
    const auto form = kv::chat_template::open(*words, "default");
    REQUIRE(words);
    REQUIRE(form);
    const auto loaded = [&] { return kv::loaded_model{hybrid(words->vocabulary_size()), {}}; };
    const auto open = [&](std::uint32_t tokens, std::size_t threads) {
        auto made = kv::open_chat(loaded(), *words, *form,
                                  {.stop = {.max_tokens = 12}, .page_tokens = tokens, .threads = threads},
                                  kv::layers::grouped{});
        REQUIRE((made ? std::string() : made.error().message) == "");
        return std::move(*made);
    };
    auto chat = open(page, 1), other = open(64, 2);
    std::size_t turn = 0;
    for (const char* question : {"Who is Ella?", "Where is she?", "What does she have?", "Why?"}) {
        CAPTURE(question);
        const auto reply = chat.say(question), again = other.say(question);
        REQUIRE((reply ? std::string() : reply.error().message) == "");
        REQUIRE(again);
        CHECK(reply->text == again->text);
        if (turn++ > 0)
            CHECK(reply->reused > reply->prefilled);
    }
    CHECK(chat.cache().check());
}
