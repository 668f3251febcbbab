// SPDX-License-Identifier: MIT
// Models with recurrent layers: a hit equals a miss, bit for bit, whatever a state was computed with.
#include <kvcache/layer_groups.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/tier/lmdb.hpp>
#include <kvcache/tier/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/huggingface/files.hpp"
#include "recurrent_fixture.hpp"
#include <catch2/catch.hpp>

using namespace recurrent;

TEST_CASE("recurrent layers: any split, page size and number of threads, cold and warm") {
    for (std::size_t which = 0; which < models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        const tokens prompt = some_tokens(model, 150, 5);
        const bool states = model.state_group().has_value();
        const kv::matrix want = alone(model, prompt);
        for (const std::uint32_t page : {16u, 32u, 64u})
            for (const std::size_t split : {1u, 7u, 64u, 513u}) {
                CAPTURE(which, page, split);
                auto cache = cache_of(model, page, 32u << 20);
                const std::size_t known = 90;
                CHECK(same_bits(runner(cache, model, split).prefill(part(prompt, 0, known)).logits,
                                first_rows(want, known)));
                const auto warm = runner(cache, model, split, 2).prefill(prompt);
                CHECK(warm.reused == (states ? (known - 1) / page * page : known));
                CHECK(same_bits(warm.logits, want));
                const auto again = runner(cache, model, split, 2).prefill(prompt);
                CHECK(again.reused == (states ? (prompt.size() - 1) / page * page : prompt.size() - 1));
                CHECK(same_bits(again.logits, want));
            }
    }
}

TEST_CASE("recurrent layers: forks at every offset, truncation, decoding") {
    for (std::size_t which = 0; which < models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        const tokens prompt = some_tokens(model, 100, 6);
        const kv::matrix want = alone(model, prompt);
        auto cache = cache_of(model, 16, 32u << 20);
        runner run(cache, model, 32, 2, {.every = 2});
        auto trunk = run.prefill(prompt);
        for (std::size_t at = 0; at <= prompt.size(); ++at) {
            CAPTURE(which, at);
            auto branch = trunk.sequence.fork(at);
            const std::size_t kept = branch.size(); // at the last snapshot
            CHECK(kept <= at);
            CHECK(at - kept < 3 * 16);
            if (kept < prompt.size())
                CHECK(same_bits(run.extend(branch, part(prompt, kept, prompt.size())), want));
        }
        for (const std::size_t at : {99u, 57u, 10u}) {
            CAPTURE(which, at);
            trunk.sequence.truncate(at);
            kv::matrix row;
            for (std::size_t i = trunk.sequence.size(); i < prompt.size(); ++i)
                row = run.extend(trunk.sequence, part(prompt, i, i + 1));
            CHECK(same_bits(row, want));
        }
    }
}

TEST_CASE("recurrent layers: forks of a sequence's end have its state, and both go on") {
    for (std::size_t which = 0; which < recurrent_models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        const tokens prompt = some_tokens(model, 45, 7), left = joined(prompt, some_tokens(model, 20, 8)),
                     right = joined(prompt, some_tokens(model, 33, 9));
        const kv::matrix want_left = alone(model, left), want_right = alone(model, right);
        auto cache = cache_of(model, 16, 32u << 20);
        runner run(cache, model, 32);
        auto one = run.prefill(prompt);
        auto other = one.sequence.fork(prompt.size());
        REQUIRE(other.size() == prompt.size());
        CAPTURE(which);
        CHECK(!other.state_of(*model.state_group()).empty());
        kv::matrix last_left, last_right;
        for (std::size_t i = prompt.size(); i < right.size(); ++i) { // in turns
            if (i < left.size())
                last_left = run.extend(one.sequence, part(left, i, i + 1));
            last_right = run.extend(other, part(right, i, i + 1));
        }
        CHECK(same_bits(last_left, want_left));
        CHECK(same_bits(last_right, want_right));
    }
}

TEST_CASE("recurrent layers: a lease that is committed in part, and one that is rolled back") {
    for (std::size_t which = 0; which < recurrent_models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        const tokens prompt = some_tokens(model, 80, 10);
        const kv::matrix want = alone(model, prompt);
        const std::size_t group = *model.state_group();
        auto cache = cache_of(model, 16, 32u << 20);
        runner run(cache, model, 32);
        auto begun = run.prefill(part(prompt, 0, 50));
        const std::vector<std::byte> before(begun.sequence.state_of(group).begin(),
                                            begun.sequence.state_of(group).end());
        {
            auto lease = cache.reserve(begun.sequence, 5);
            REQUIRE(lease);
            const auto after = lease->state_after(group);
            REQUIRE(after.size() == before.size());
            std::fill(after.begin(), after.end(), std::byte{7});
        }
        CAPTURE(which);
        CHECK(std::equal(before.begin(), before.end(), begun.sequence.state_of(group).begin()));
        {
            auto lease = cache.reserve(begun.sequence, 5);
            REQUIRE(lease);
            std::fill_n(lease->state_after(group).begin(), before.size(), std::byte{7});
            lease->commit({});
        }
        CHECK(std::equal(before.begin(), before.end(), begun.sequence.state_of(group).begin()));
        {
            auto lease = cache.reserve(begun.sequence, 5); // as after rejected drafts: rows are right, the state is not
            REQUIRE(lease);
            kv::thread_pool pool(1);
            auto pass = model.make_forward_pass<decltype(cache)::lease>(pool);
            const kv::batch_slice<decltype(cache)::lease> slice{
                .lease = &*lease,
                .tokens = std::span(prompt).subspan(50, 5),
                .wanted = kv::logits_mode::none,
                .states = {.before = lease->state_before(group), .after = lease->state_after(group)}};
            pass.begin({&slice, 1});
            for (const kv::layer_id layer : model.layers())
                pass.forward(layer);
            lease->commit(std::span(prompt).subspan(50, 2));
        }
        CHECK(begun.sequence.size() == 52);
        CHECK(begun.sequence.state_of(group).empty());
        CHECK(same_bits(run.extend(begun.sequence, part(prompt, 52, prompt.size())), want));
    }
}

TEST_CASE("recurrent layers: edits and regenerated answers begin at a snapshot") {
    for (std::size_t which = 0; which < models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        const tokens prompt = some_tokens(model, 400, 11);
        constexpr std::size_t page = 16, every = 4;
        auto cache = cache_of(model, page, 64u << 20);
        runner run(cache, model, 64, 2, {.every = every});
        (void)run.prefill(prompt);
        for (const std::size_t at : {391u, 200u, 64u, 33u, 3u}) {
            CAPTURE(which, at);
            const tokens edited = joined(part(prompt, 0, at), some_tokens(model, 60, static_cast<unsigned>(at)));
            const auto made = run.prefill(edited);
            CHECK(made.reused + every * page + page > at);
            CHECK(same_bits(made.logits, alone(model, edited)));
            const tokens branch = joined(part(prompt, 0, at), some_tokens(model, 30, static_cast<unsigned>(at + 1)));
            const auto second = run.prefill(branch); // parts at the same place: its snapshot is there now
            CHECK(second.reused == (model.state_group() ? at / page * page : at));
            CHECK(same_bits(second.logits, alone(model, branch)));
        }
    }
}

TEST_CASE("recurrent layers: batches with strangers") {
    for (std::size_t which = 0; which < models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        auto cache = cache_of(model, 16, 32u << 20);
        using entry = kv::batch_entry<decltype(cache)>;
        for (const std::size_t split : {19u, 256u}) {
            runner run(cache, model, split, 2);
            std::vector<tokens> prompts;
            std::vector<kv::matrix> want;
            std::vector<decltype(cache)::sequence> sequences;
            for (unsigned seed = 0; seed < 5; ++seed) {
                prompts.push_back(some_tokens(model, 1 + 17 * seed, 30 + seed));
                want.push_back(alone(model, prompts.back()));
                sequences.push_back(cache.open());
            }
            std::vector<entry> batch;
            for (std::size_t i = 0; i < prompts.size(); ++i)
                batch.push_back({&sequences[i], prompts[i], kv::logits_mode::all});
            kv::matrix all;
            REQUIRE(run.pipeline.extend(batch, all));
            Eigen::Index row = 0;
            for (const kv::matrix& one : want) {
                CAPTURE(which, split);
                CHECK(same_bits(all.middleRows(row, one.rows()), one));
                row += one.rows();
            }
        }
    }
}

TEST_CASE("recurrent layers: eviction, tiers and a disk that a second cache opens") {
    for (std::size_t which = 0; which < models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        std::vector<tokens> prompts;
        std::vector<kv::matrix> want;
        for (unsigned seed = 0; seed < 4; ++seed) {
            prompts.push_back(some_tokens(model, 90 + 13 * seed, 20 + seed));
            want.push_back(alone(model, prompts.back()));
        }
        const auto group = model.state_group();
        const std::size_t states = group ? 2 * model.layout(16).groups[*group].state_bytes : 0;
        const std::size_t bytes = 2 * static_cast<std::size_t>(model.layout(16).bytes(130, 4)) + states;
        const auto rounds = [&](auto cache) {
            runner run(cache, model, 48);
            std::size_t reused = 0;
            for (int round = 0; round < 3; ++round)
                for (std::size_t i = 0; i < prompts.size(); ++i) {
                    CAPTURE(which, round, i);
                    const auto made = run.prefill(prompts[i]);
                    reused += made.reused;
                    CHECK(same_bits(made.logits, want[i]));
                }
            return reused;
        };
        (void)rounds(cache_of(model, 16, bytes));
        CHECK(rounds(cache_of(model, 16, bytes, kv::tier::memory<>{.bytes = 8u << 20})) > 0);
        const testing_files::temporary_directory directory;
        const kv::tier::lmdb<> disk{.directory = directory.path() / "pages"};
        (void)rounds(cache_of(model, 16, bytes, disk));
        auto second = cache_of(model, 16, 32u << 20, disk);
        const auto made = runner(second, model).prefill(prompts[0]);
        CAPTURE(which);
        CHECK(made.reused > 0);
        CHECK(same_bits(made.logits, want[0]));
    }
}

TEST_CASE("recurrent layers: random conversations") {
    const unsigned seed = 1;
    std::mt19937 dice(seed);
    for (std::size_t which = 0; which < models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        auto cache = cache_of(model, 16, static_cast<std::size_t>(3 * model.layout(16).bytes(200, 4)));
        runner run(cache, model, 24, 2, {.every = 5});
        std::vector<decltype(cache)::sequence> sequences;
        for (int round = 0; round < 60; ++round) {
            CAPTURE(seed, which, round);
            const auto pick = [&](std::size_t below) { return dice() % below; };
            if (sequences.size() < 2 || (sequences.size() < 4 && pick(4) == 0)) {
                tokens prompt = some_tokens(model, 20 + pick(40), static_cast<unsigned>(pick(3)));
                sequences.push_back(run.prefill(joined(std::move(prompt),
                                                       some_tokens(model, 1 + pick(9), static_cast<unsigned>(dice()))))
                                        .sequence);
                continue;
            }
            auto& one = sequences[pick(sequences.size())];
            switch (pick(5)) {
            case 0:
                one.truncate(pick(one.size() + 1));
                break;
            case 1:
                if (sequences.size() < 4)
                    sequences.push_back(one.fork(pick(one.size() + 1)));
                break;
            case 2:
                std::swap(one, sequences.back());
                sequences.pop_back();
                break;
            default: {
                const tokens more = some_tokens(model, 1 + pick(12), static_cast<unsigned>(dice()));
                const tokens all = joined(tokens(one.tokens().begin(), one.tokens().end()), more);
                if (all.size() > 180)
                    break;
                auto made = run.pipeline.extend(one, more, kv::logits_mode::all);
                if (made)
                    CHECK(same_bits(*made, alone(model, all)));
                else
                    CHECK(made.error().code == kv::error_code::out_of_memory);
            }
            }
            check(cache);
        }
    }
}

TEST_CASE("a model with recurrent layers says that its cache needs groups") {
    const kv::transformer& model = recurrent_model(0);
    auto cache = kv::make_cache({model.shape(16), {.bytes = 8u << 20}});
    kv::thread_pool pool(1);
    kv::pipeline pipeline(cache, model, pool);
    const auto made = pipeline.prefill(some_tokens(model, 5, 1));
    REQUIRE(!made);
    CHECK(made.error().code == kv::error_code::unsupported);
    CHECK(made.error().field == "layers");
    CHECK(!model.keys_can_move());
    CHECK(model.layout(16).describe().find("state: 3 layers, a hit needs a snapshot at its last token") !=
          std::string::npos);
}
