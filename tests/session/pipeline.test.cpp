// SPDX-License-Identifier: MIT
// Promise 1: a hit equals a miss, bit for bit.
#include <kvcache/session/generate.hpp>
#include <kvcache/session/pipeline.hpp>

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

TEST_CASE("a full hit gives the bits of a miss, three times over") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 75, 1);
    const kv::matrix want = cold(model, prompt);
    host here(model);
    CHECK(same_bits(here.prefill(prompt).logits, want));
    for (int again = 0; again < 3; ++again) {
        const prefill_result warm = here.prefill(prompt);
        CHECK(warm.reused == prompt.size() - 1);
        CHECK(warm.prefilled == 1);
        CHECK(same_bits(warm.logits, want));
    }
}

TEST_CASE("a partial hit of any length gives the bits of a miss") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 70, 2);
    const kv::matrix want = cold(model, prompt);
    for (std::size_t known = 1; known < prompt.size(); ++known) {
        host here(model, 32);
        (void)here.prefill({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(known)});
        const prefill_result warm = here.prefill(prompt);
        CHECK(warm.reused == known);
        CHECK(same_bits(warm.logits, want));
    }
}

TEST_CASE("a prompt edited in the middle reuses what comes before the edit") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 90, 3);
    for (const std::size_t place : {0u, 1u, 15u, 16u, 17u, 45u, 88u, 89u}) {
        host here(model, 64);
        (void)here.prefill(prompt);
        tokens edited = prompt;
        edited[place] = kv::token_id{(kv::index_of(edited[place]) + 1) % static_cast<std::int32_t>(model.vocabulary())};
        const prefill_result warm = here.prefill(edited);
        CHECK(warm.reused == place);
        CHECK(same_bits(warm.logits, cold(model, edited)));
        CHECK(same_bits(here.prefill(prompt).logits, cold(model, prompt)));
    }
}

TEST_CASE("an answer that is regenerated, repeated and continued keeps its bits") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 37, 4), first = some_tokens(model, 21, 5),
                 second = some_tokens(model, 30, 6);
    host here(model, 16);
    for (const tokens& said : {first, second, first}) {
        prefill_result turn = here.prefill(prompt);
        kv::matrix rows(0, 0);
        for (const kv::token_id token : said) // one token at a time, like decoding
            rows = here.extend(turn.sequence, {token});
        CHECK(same_bits(rows, cold(model, joined(prompt, said))));
    }
    const tokens all = joined(joined(prompt, first), some_tokens(model, 11, 7));
    const prefill_result next = here.prefill(all);
    CHECK(next.reused == prompt.size() + first.size());
    CHECK(same_bits(next.logits, cold(model, all)));
}

TEST_CASE("a fork at any token, both sides continued, gives the bits of a miss") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 50, 8), left = some_tokens(model, 20, 9),
                 right = some_tokens(model, 20, 10);
    const kv::matrix want_left = cold(model, joined(prompt, left));
    for (std::size_t at = 1; at <= prompt.size(); ++at) {
        host here(model, 16);
        prefill_result trunk = here.prefill(prompt);
        auto branch = trunk.sequence.fork(at);
        const tokens before(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(at));
        CHECK(same_bits(here.extend(branch, right), cold(model, joined(before, right))));
        CHECK(same_bits(here.extend(trunk.sequence, left), want_left));
        CHECK(here.store.check().has_value());
    }
}

TEST_CASE("a sequence truncated at any token and continued gives the bits of a miss") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 50, 11), more = some_tokens(model, 18, 12);
    host here(model, 32);
    for (std::size_t at = 0; at <= prompt.size(); ++at) {
        prefill_result turn = here.prefill(prompt);
        turn.sequence.truncate(at);
        const tokens before(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(at));
        CHECK(same_bits(here.extend(turn.sequence, more), cold(model, joined(before, more))));
    }
    CHECK(same_bits(here.prefill(prompt).logits, cold(model, prompt)));
}

TEST_CASE("interleaved conversations do not touch one another") {
    const auto& model = each_model();
    const tokens system = some_tokens(model, 40, 13);
    std::vector<tokens> said(3, system);
    host here(model, 32);
    std::vector<prefill_result> users;
    for (unsigned user = 0; user < 3; ++user) {
        said[user] = joined(said[user], some_tokens(model, 5 + user, 20 + user));
        users.push_back(here.prefill(said[user]));
    }
    for (unsigned round = 0; round < 6; ++round)
        for (unsigned user = 0; user < 3; ++user) {
            const tokens more = some_tokens(model, 1 + (round * 7 + user) % 13, 100 + round * 3 + user);
            said[user] = joined(said[user], more);
            CHECK(same_bits(here.extend(users[user].sequence, more), cold(model, said[user])));
        }
}

TEST_CASE("what was evicted and computed again has the same bits") {
    const auto& model = each_model();
    host here(model, 16, 1, 64, 12); // capacity for 192 tokens
    std::vector<tokens> prompts;
    for (unsigned i = 0; i < 4; ++i)
        prompts.push_back(some_tokens(model, 100 + 7 * i, 200 + i));
    std::size_t recomputed = 0;
    for (int round = 0; round < 3; ++round)
        for (const tokens& prompt : prompts) {
            const prefill_result turn = here.prefill(prompt);
            recomputed += turn.prefilled;
            CHECK(same_bits(turn.logits, cold(model, prompt)));
            CHECK(here.store.check().has_value());
        }
    CHECK(recomputed > 1000); // the cache has room for one of them at a time
}

TEST_CASE("any prefill split, page size and thread count gives the same bits") {
    const auto& model = each_model();
    const tokens longest = some_tokens(model, 1090, 14); // longer than the split of long contexts
    const kv::matrix of_longest = cold(model, longest);
    for (const std::uint32_t page : {16u, 32u, 64u, 256u})
        for (const std::size_t split : {1u, 2u, 3u, 7u, 16u, 17u, 64u, 1000u}) {
            // The trained model takes seconds row by row; its short splits run a shorter prompt.
            const std::size_t size = &model == &random_model() || split > 17 ? longest.size() : 150;
            const std::size_t known = size / 2 - 15, threads = 1 + split % 2;
            CAPTURE(page, split, threads, size);
            const kv::matrix want = first_rows(of_longest, size);
            host here(model, page, threads, split, 4096 / page * 4);
            const prefill_result part =
                here.prefill({longest.begin(), longest.begin() + static_cast<std::ptrdiff_t>(known)});
            CHECK(same_bits(part.logits, first_rows(want, known)));
            const prefill_result whole =
                here.prefill({longest.begin(), longest.begin() + static_cast<std::ptrdiff_t>(size)});
            CHECK(whole.reused == known);
            CHECK(same_bits(whole.logits, want));
        }
}

TEST_CASE("one thread and two give the same bits for each way to split") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 200, 15);
    const kv::matrix want = cold(model, prompt);
    for (const std::size_t threads : {1u, 2u, 3u})
        for (const std::size_t split : {1u, 2u, 3u, 7u, 16u, 17u, 64u, 1000u})
            CHECK(same_bits(host(model, 64, threads, split).prefill(prompt).logits, want));
}

TEST_CASE("alone or in a batch with seven strangers, the bits are the same") {
    const auto& model = each_model();
    for (const std::size_t split : {5u, 64u, 1000u}) {
        host here(model, 32, 2, split);
        std::vector<tokens> past, more;
        std::vector<prefill_result> users;
        for (unsigned i = 0; i < 8; ++i) {
            past.push_back(some_tokens(model, 3 + 11 * i, 300 + i));
            more.push_back(some_tokens(model, 1 + 5 * i % 17, 400 + i));
            users.push_back(here.prefill(past[i]));
        }
        std::vector<kv::batch_entry<cache>> batch;
        for (unsigned i = 0; i < 8; ++i)
            batch.push_back({&users[i].sequence, more[i], kv::logits_mode::all});
        kv::matrix rows;
        REQUIRE(here.pipeline.extend(batch, rows).has_value());
        Eigen::Index at = 0;
        for (unsigned i = 0; i < 8; ++i) {
            const auto n = static_cast<Eigen::Index>(more[i].size());
            CHECK(same_bits(rows.middleRows(at, n), cold(model, joined(past[i], more[i]))));
            at += n;
        }
        CHECK(at == rows.rows());
    }
}

TEST_CASE("logits are returned for the rows that want them") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 33, 16);
    const kv::matrix want = cold(model, prompt);
    host here(model, 16, 1, 10);
    CHECK(here.prefill(prompt, kv::logits_mode::none).logits.rows() == 0);
    const prefill_result last = here.prefill(prompt, kv::logits_mode::last);
    CHECK(last.logits.rows() == 1);
    CHECK(same_bits(last.logits, want));
}

TEST_CASE("a prompt that cannot run is refused, and nothing has changed") {
    const auto& model = each_model();
    host here(model, 16, 1, 64, 4); // 64 tokens
    const tokens prompt = some_tokens(model, 40, 17);
    prefill_result turn = here.prefill(prompt);

    const auto too_long = here.pipeline.prefill(some_tokens(model, 65, 18));
    REQUIRE_FALSE(too_long.has_value());
    CHECK(too_long.error().code == kv::error_code::out_of_memory);
    const auto no_room = here.pipeline.extend(turn.sequence, some_tokens(model, 30, 19));
    CHECK_FALSE(no_room.has_value());
    CHECK(turn.sequence.size() == 40);
    for (const std::int32_t foreign : {-1, static_cast<std::int32_t>(model.vocabulary()), 1 << 30}) {
        const auto refused = here.pipeline.prefill(tokens{kv::token_id{1}, kv::token_id{foreign}});
        REQUIRE_FALSE(refused.has_value());
        CHECK(refused.error().code == kv::error_code::out_of_range);
    }
    CHECK_FALSE(here.pipeline.prefill(tokens{}).has_value());
    const tokens more = some_tokens(model, 24, 20);
    CHECK(same_bits(here.extend(turn.sequence, more), cold(model, joined(prompt, more))));
}

TEST_CASE("no token runs past the model's positions") {
    const auto model = kv::make_random_model({.hidden_size = 16,
                                              .intermediate_size = 16,
                                              .layers = 1,
                                              .heads = 1,
                                              .kv_heads = 1,
                                              .head_dim = 16,
                                              .vocabulary = 31,
                                              .max_positions = 60},
                                             1);
    host here(model);
    prefill_result turn = here.prefill(some_tokens(model, 59, 1));
    CHECK(here.pipeline.extend(turn.sequence, some_tokens(model, 2, 2)).error().field == "max_positions");
    CHECK(here.pipeline.extend(turn.sequence, some_tokens(model, 1, 2)).has_value());
    CHECK_FALSE(here.pipeline.extend(turn.sequence, some_tokens(model, 1, 3)).has_value());
    CHECK_FALSE(here.pipeline.prefill(some_tokens(model, 61, 4)).has_value());
    const auto said = kv::generate(here.pipeline, some_tokens(model, 50, 5), kv::sampler{}, {.max_tokens = 100},
                                   [](kv::token_id, std::span<const float>) { return true; });
    REQUIRE(said.has_value());
    CHECK(said->ids.size() == 11);
}

TEST_CASE("a batch of which one has no room changes none") {
    const auto& model = each_model();
    host here(model, 16, 1, 64, 8);
    prefill_result a = here.prefill(some_tokens(model, 20, 21)), b = here.prefill(some_tokens(model, 20, 22));
    const tokens small = some_tokens(model, 4, 23), large = some_tokens(model, 200, 24);
    const kv::batch_entry<cache> batch[] = {{&a.sequence, small}, {&b.sequence, large}};
    kv::matrix rows;
    CHECK_FALSE(here.pipeline.extend(batch, rows).has_value());
    CHECK(a.sequence.size() == 20);
    CHECK(b.sequence.size() == 20);
    CHECK(here.store.check().has_value());
}

TEST_CASE("an int8 model keeps the promise among its own pages, and is close to the model it was made from") {
    kv::thread_pool threads(2);
    const kv::transformer rounded = tiny_model().in_int8(threads);
    CHECK(rounded.id({}).weight_format == "Q8_0, int8 activations"); // so that the two never share a page
    tokens prompt = some_tokens(rounded, 5, 31);                     // and the model's own continuation
    {
        host here(tiny_model());
        const auto said = kv::generate(here.pipeline, prompt, kv::sampler{.temperature = 1.0f, .seed = 3},
                                       {.max_tokens = 150}, [](kv::token_id, std::span<const float>) { return true; });
        REQUIRE(said.has_value());
        prompt = joined(prompt, said->ids);
    }
    const kv::matrix want = cold(rounded, prompt), exact = cold(tiny_model(), prompt);
    for (const std::size_t split : {1u, 7u, 64u}) {
        host here(rounded, 32, 2, split);
        CHECK(same_bits(here.prefill(prompt).logits, want));
        CHECK(same_bits(here.prefill(prompt).logits, want));
        prefill_result fork = here.prefill({prompt.begin(), prompt.begin() + 70});
        CHECK(same_bits(here.extend(fork.sequence, {prompt.begin() + 70, prompt.end()}), want));
    }

    double divergence = 0.0; // of the original from the quantized model, in nats per token
    Eigen::Index agree = 0;
    for (Eigen::Index row = 0; row < want.rows(); ++row) {
        const Eigen::ArrayXd x = exact.row(row).cast<double>().array(), y = want.row(row).cast<double>().array();
        const Eigen::ArrayXd p = x - x.maxCoeff() - std::log((x - x.maxCoeff()).exp().sum());
        const Eigen::ArrayXd q = y - y.maxCoeff() - std::log((y - y.maxCoeff()).exp().sum());
        divergence += (p.exp() * (p - q)).sum() / static_cast<double>(want.rows());
        Eigen::Index first = 0, second = 0;
        x.maxCoeff(&first), y.maxCoeff(&second);
        agree += first == second;
    }
    INFO("KL " << divergence << " nats a token, the same likeliest token at " << agree << " of " << want.rows());
    CHECK(divergence < 0.02);
    CHECK(static_cast<double>(agree) > 0.95 * static_cast<double>(want.rows()));
}
