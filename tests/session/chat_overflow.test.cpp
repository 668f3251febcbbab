// SPDX-License-Identifier: MIT
#include <kvcache/session/chat_overflow.hpp>
#include <kvcache/session/chat_session.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "promise_fixture.hpp"
#include "session/small_model.hpp"
#include "support/folders.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

// A model of one layer: keys and values depend on their token alone, so removing other tokens is exact.
const kv::transformer& shallow_model() {
    static const kv::transformer model = kv::make_random_model(small::config_of(1), 7);
    return model;
}

double farthest(const kv::matrix& a, const kv::matrix& b) {
    return static_cast<double>((a - b).cwiseAbs().maxCoeff());
}

} // namespace

TEST_CASE("tokens in the middle go, and the others have the positions that are left") {
    const auto& model = shallow_model();
    const tokens prompt = some_tokens(model, 150, 1), more = some_tokens(model, 40, 2);
    for (const std::size_t first : {0u, 4u, 16u, 37u})
        for (const std::size_t count : {1u, 16u, 50u, 113u}) {
            INFO(count << " tokens go behind " << first);
            host here(model);
            auto whole = here.prefill(prompt);
            auto rest = whole.sequence.erase_range(first, count);
            REQUIRE(rest.has_value());
            tokens kept(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(first));
            kept.insert(kept.end(), prompt.begin() + static_cast<std::ptrdiff_t>(first + count), prompt.end());
            CHECK(std::ranges::equal(rest->tokens(), kept));
            CHECK(rest->exact() == (kept.size() == first ? kept.size() : first));
            for (const auto& part : {more, some_tokens(model, 3, 3)}) {
                const kv::matrix rows = here.extend(*rest, part);
                kept = joined(kept, part);
                const kv::matrix wanted = cold(model, kept).bottomRows(rows.rows());
                CHECK(farthest(rows, wanted) < 2e-4);
                REQUIRE(here.store.check().has_value());
            }
            // Removing twice equals removing once, and forks are independent.
            const std::size_t again = std::min<std::size_t>(9, rest->size() - first);
            auto shorter = rest->erase_range(first, again);
            REQUIRE(shorter.has_value());
            kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(first),
                       kept.begin() + static_cast<std::ptrdiff_t>(first + again));
            auto branch = shorter->fork(shorter->size());
            const kv::matrix rows = here.extend(branch, more);
            CHECK(farthest(rows, cold(model, joined(kept, more)).bottomRows(rows.rows())) < 2e-4);
            REQUIRE(here.store.check().has_value());
        }
}

TEST_CASE("approximate rows are private, and the sequence they came from is unchanged") {
    const auto& model = random_model();
    const tokens prompt = some_tokens(model, 100, 1);
    host here(model);
    auto whole = here.prefill(prompt);
    auto rest = whole.sequence.erase_range(4, 40);
    REQUIRE(rest.has_value());
    (void)here.extend(*rest, some_tokens(model, 60, 2)); // full pages too
    const tokens kept(rest->tokens().begin(), rest->tokens().end());
    CHECK(same_bits(here.prefill(kept).logits, cold(model, kept)));
    CHECK(same_bits(here.extend(whole.sequence, some_tokens(model, 5, 3)),
                    cold(model, joined(prompt, some_tokens(model, 5, 3)))));
    rest->truncate(4); // the remaining tokens are exact again
    CHECK(rest->exact() == 4);
    const tokens head(prompt.begin(), prompt.begin() + 4);
    CHECK(
        same_bits(here.extend(*rest, some_tokens(model, 30, 4)), cold(model, joined(head, some_tokens(model, 30, 4)))));
}

TEST_CASE("where there are no pages for what is left nothing has changed") {
    const auto& model = random_model();
    host here(model, 16, 1, 64, 10);
    auto whole = here.prefill(some_tokens(model, 150, 1));
    const auto none = whole.sequence.erase_range(4, 20);
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().code == kv::error_code::out_of_memory);
    CHECK(here.store.stats().in_use == 10);
}

TEST_CASE("a conversation that drops tokens continues for ever without recomputing any") {
    const auto directory = test_folders::project() / "examples" / "models" / "worlds-2m";
    auto words = kv::tokenizer::open(directory);
    REQUIRE(words.has_value());
    auto form = kv::chat_template::open(*words, "default");
    REQUIRE(form.has_value());
    host here(tiny_model());
    kv::chat_session<cache, kv::sinks_overflow> chat(here.store, {*words, *form}, 120, "Be brief.");
    std::size_t forgot = 0, extended = 0;
    for (int turn = 0; turn < 12; ++turn) {
        const auto reply =
            chat.say(here.pipeline, "The box number " + std::to_string(turn) + " stands in the library.", {},
                     {.max_tokens = 12, .stop_tokens = {kv::token_id{2}}}, {}, [](const std::string&) { return true; });
        REQUIRE(reply.has_value());
        const auto now = chat.info();
        CHECK(now.ids == now.cached + now.pending);
        CHECK(now.ids <= 120);
        CHECK(reply->prompt + 12 <= 120);
        CHECK(reply->exact == (forgot + reply->dropped_tokens == 0));
        CHECK(now.exact == reply->exact);
        if (turn > 0 && reply->extends) {
            ++extended;
            CHECK(reply->prefilled < 40); // the new turn only
            CHECK(reply->changed == 0);
            CHECK(reply->rerun == 0);
        }
        forgot += reply->dropped_tokens;
    }
    CHECK(forgot > 100);
    CHECK(extended > 8);
    CHECK(chat.info().messages == 25);
    const auto none =
        chat.say(here.pipeline, "Who?", {}, {.max_tokens = 118}, {}, [](const std::string&) { return true; });
    CHECK_FALSE(none.has_value());
}
