// SPDX-License-Identifier: MIT
#include <kvcache/cache/compose.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/recompute/all.hpp>
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/reuse_quality.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cache/matching.hpp"
#include "session/chunk_prompts.hpp"
#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using small::joined;
using small::tokens;

const kv::transformer& model() {
    static const kv::transformer made = kv::make_random_model(small::config_of(3), 7);
    return made;
}

using small::some;

using every_other = small::every_other<0>;
static_assert(kv::recompute_policy<every_other> && kv::chunk_recompute_state<every_other::state>);

// Recomputes everything, and records the deviations of the values in the second and third layer.
struct spy {
    using role = kv::recompute_role;
    struct state : kv::recompute::exact_prefix::state {
        [[nodiscard]] kv::deviation_metric compared() const { return kv::deviation_metric::values; }
        [[nodiscard]] std::size_t check_layer() const { return 1; }
        [[nodiscard]] std::size_t filters() const { return 1; }
        void select(std::span<const kv::reused_span> runs, std::span<const float> off,
                    std::vector<std::size_t>& positions) const {
            seen[0].assign(off.begin(), off.end());
            kv::recompute::full{}.open({}).select(runs, positions);
        }
        void filter(std::size_t, std::span<const kv::reused_span>, std::span<const float> off,
                    std::vector<std::size_t>&) const {
            seen[1].assign(off.begin(), off.end());
        }
        std::vector<float>* seen;
    };
    std::vector<float>* seen;
    [[nodiscard]] state open(kv::page_shape) const { return {{}, seen}; }
};
static_assert(kv::recompute_policy<spy> && kv::filtering_recompute_state<spy::state>);

template <class Policy>
struct host {
    using cache = kv::cache<kv::index::chunk, Policy>;
    using pipeline_type = kv::chunk_pipeline<cache, kv::transformer>;

    explicit host(Policy policy = {}, std::size_t rows = 64, std::size_t threads = 1, std::size_t pages = 400)
        : pool(threads),
          store(kv::make_cache(
              {model().shape(16), {.bytes = pages * kv::codec::f32{}.open(model().shape(16)).page_bytes()}},
              kv::index::chunk{.least = 8}, std::move(policy))),
          pipeline(store, model(), pool, {.split = {.size = 48, .least = 8}, .max_batch_tokens = rows}) {}
    ~host() {
        const auto sound = store.check();
        CHECK((sound ? std::string() : sound.error().field + " " + sound.error().message) == "");
    }

    kv::spliced_prompt<cache> prefill(const tokens& prompt, kv::reuse_mode mode = kv::reuse_mode::chunks) {
        auto done = pipeline.prefill(prompt, mode);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    void warm(const tokens& text, kv::warmup_options how = {}) {
        auto done = pipeline.warm(text, how);
        REQUIRE(done.has_value());
        REQUIRE(done->chunks > 0);
    }

    kv::thread_pool pool;
    cache store;
    pipeline_type pipeline;
};

kv::matrix cold(const tokens& prompt) {
    host<kv::recompute::none> fresh;
    return fresh.prefill(prompt, kv::reuse_mode::baseline).logits;
}

bool same(const kv::matrix& a, const kv::matrix& b) {
    return a.size() == b.size() && a.size() > 0 &&
           std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)) == 0;
}

float off(const kv::matrix& a, const kv::matrix& b) {
    return (a - b).cwiseAbs().maxCoeff();
}

const tokens a = some(45, 1), b = some(33, 2), c = some(48, 3), question = some(9, 4), gap = some(7, 5);

} // namespace

TEST_CASE("chunks are found anywhere, with gaps, and reported span by span") {
    host<kv::recompute::none> h;
    for (const tokens& one : {a, b, c})
        h.warm(one);
    const auto filled = h.prefill(joined({a, gap, c, b, question}));
    using kind = kv::reuse_kind;
    const std::vector<kv::prompt_span> expected{{kind::exact, 0, 45},
                                                {kind::missing, 45, 7},
                                                {kind::approximate, 52, 48},
                                                {kind::approximate, 100, 33},
                                                {kind::missing, 133, 9}};
    CHECK(filled.spans == expected);
    CHECK(filled.counts.exact == 45);
    CHECK(filled.counts.approximate == 81);
    CHECK(filled.counts.prefilled == 16);
    CHECK(filled.counts.recomputed == 0);
    CHECK(filled.counts.layer_rows == 16 * 3);
    CHECK(filled.sequence.size() == 142);
    CHECK(filled.sequence.exact() == 52);
}

TEST_CASE("a prompt of which every token runs again has the bits of a prefill, and is exact") {
    host<kv::recompute::full> h;
    for (const tokens& one : {a, b, c})
        h.warm(one);
    for (const tokens& prompt : {joined({c, a, b, question}), joined({gap, b, a}), joined({question, a, gap, c})}) {
        const auto filled = h.prefill(prompt);
        CHECK(filled.counts.recomputed > 0);
        CHECK(same(filled.logits, cold(prompt)));
        CHECK(filled.sequence.exact() == prompt.size());
    }
}

TEST_CASE("where no chunk has moved, chunk reuse is prefix reuse") {
    host<kv::recompute::none> h;
    const tokens prompt = joined({a, b, c, question});
    h.warm(joined({a, b, c}), {.alone = false});
    const auto filled = h.prefill(prompt);
    CHECK(filled.counts.approximate == 0);
    CHECK(filled.counts.exact == 126);
    CHECK(same(filled.logits, cold(prompt)));
    CHECK(same(h.prefill(prompt, kv::reuse_mode::prefix).logits, cold(prompt)));
}

TEST_CASE("tokens cut from one prefill that move together are one run, and need no repair inside") {
    host<kv::recompute::none> h;
    h.warm(joined({some(48, 50), c, a}), {.alone = false}); // chunks of 48, 48 and 45
    const auto filled = h.prefill(joined({gap, c, a, question}));
    const kv::prompt_span moved{kv::reuse_kind::approximate, 7, 93};
    REQUIRE(filled.spans.size() == 3);
    CHECK(filled.spans[1] == moved);
}

TEST_CASE("a reused chunk is its pages: nothing is copied, nothing is written") {
    host<kv::recompute::none> h;
    h.warm(c);
    const auto known = kvcache_test::match_in(h.store, c);
    const std::size_t taken = h.store.stats().pages - h.store.stats().free;
    const auto filled = h.prefill(joined({gap, c, question}));
    std::size_t shared = 0;
    for (const kv::page_entry& entry : filled.sequence.table())
        if (entry.base == 7)
            shared += entry.count;
    CHECK(shared == 48);
    // Seven rows before it and nine after it, in blocks 0 and 3 of positions.
    CHECK(h.store.stats().pages - h.store.stats().free == taken + 2);
}

TEST_CASE("a repaired prompt does O(k) work: rows that ran, times layers") {
    const tokens prompt = joined({gap, a, c, b, question});
    const std::size_t reused = 45 + 48 + 33;
    const auto counts = [&](auto policy) {
        host h(policy);
        for (const tokens& one : {a, b, c})
            h.warm(one);
        const auto filled = h.prefill(prompt).counts;
        CHECK(filled.prompt == prompt.size());
        CHECK(filled.exact + filled.approximate + filled.recomputed + filled.prefilled == prompt.size());
        return filled;
    };
    const auto head = counts(kv::recompute::chunk_head{.rows = 16});
    CHECK(head.recomputed == 48);
    CHECK(head.layer_rows == (48 + 16) * 3);
    const auto seam = counts(kv::recompute::chunk_boundary{.rows = 4});
    CHECK(seam.recomputed == 12);
    CHECK(seam.layer_rows == (12 + 16) * 3);
    const auto blend = counts(kv::recompute::blend{.fraction = 0.25});
    CHECK(blend.recomputed == reused / 4);
    CHECK(blend.layer_rows == (reused / 4 + 16) * 3 + reused); // and all reused tokens through the first layer
    // Of 126: 44 are selected and run through two layers to be compared in the third; then 31 run through all layers.
    const auto gradual = counts(kv::recompute::gradual_blend{.fraction = 0.25, .wider = 1.4142136, .filters = 1});
    CHECK(gradual.recomputed == reused / 4);
    CHECK(gradual.layer_rows == (reused / 4 + 16) * 3 + reused + 44 * 2);
    const auto own = counts(every_other{});
    CHECK(own.recomputed == 23 + 24 + 17);
    CHECK(own.layer_rows == (23 + 24 + 17 + 16) * 3);
}

TEST_CASE("how far tokens are off is the distance of what is stored from what a prefill computes, in every layer") {
    std::vector<float> seen[2];
    host h(spy{seen});
    const auto values = [&](const auto& sequence, std::size_t position, std::uint32_t layer) {
        std::vector<float> all, scratch(1024);
        std::size_t before = 0;
        for (const kv::page_entry& entry : sequence.table()) {
            if (position < before + entry.count) {
                const auto row = static_cast<std::uint32_t>(entry.first + position - before);
                for (const std::uint32_t head : {0u, 1u}) {
                    const float* tile = h.store.codec().values(
                        h.store.storage().bytes(entry.page),
                        {kv::layer_id{layer}, kv::head_id{head}, row / kv::tile_tokens}, scratch);
                    const float* first = tile + row % kv::tile_tokens * kv::padded_head_dim(24);
                    all.insert(all.end(), first, first + 24);
                }
                return all;
            }
            before += entry.count;
        }
        FAIL("no such position");
        return all;
    };
    std::vector<float> alone[2];
    for (const tokens& one : {a, c}) {
        h.warm(one);
        const auto read = h.prefill(one, kv::reuse_mode::prefix);
        for (const std::uint32_t layer : {1u, 2u})
            for (std::size_t at = 0; at < one.size(); ++at)
                for (const float x : values(read.sequence, at, layer))
                    alone[layer - 1].push_back(x);
    }
    const auto spliced = h.prefill(joined({gap, a, gap, c, question}));
    CHECK(spliced.counts.recomputed == 93);
    for (const std::uint32_t layer : {1u, 2u}) {
        REQUIRE(seen[layer - 1].size() == 93);
        for (std::size_t i = 0; i < 93; ++i) {
            const auto now = values(spliced.sequence, i + (i < 45 ? 7 : 14), layer);
            double sum = 0.0;
            for (std::size_t d = 0; d < 48; ++d)
                sum += std::pow(static_cast<double>(now[d]) - static_cast<double>(alone[layer - 1][i * 48 + d]), 2);
            CHECK(static_cast<double>(seen[layer - 1][i]) == Approx(sum).epsilon(1e-4).margin(1e-9));
        }
    }
}

TEST_CASE("repair mends, and where every token runs again it is exact") {
    const tokens prompt = joined({gap, a, c, b, question});
    const kv::matrix truth = cold(prompt);
    const auto error = [&](auto policy) {
        host h(policy);
        for (const tokens& one : {a, b, c})
            h.warm(one);
        return off(h.prefill(prompt).logits, truth);
    };
    CHECK(error(kv::recompute::none{}) > 1e-3f);
    CHECK(error(kv::recompute::blend{.fraction = 0.6}) < error(kv::recompute::none{}));
    CHECK(error(kv::recompute::gradual_blend{.fraction = 0.6}) < error(kv::recompute::none{}));
    CHECK(error(kv::recompute::gradual_blend{.fraction = 1.0}) == 0.0f);
    CHECK(error(kv::recompute::chunk_head{.rows = 200}) == 0.0f);
}

TEST_CASE("one approximate chunk alone is repaired") {
    host h(kv::recompute::chunk_head{.rows = 16});
    h.warm(c);
    CHECK(h.prefill(joined({gap, c, question})).counts.recomputed == 16);
}

TEST_CASE("a moved prefix keeps its own answers: only rotations differ") {
    // The first layer's keys and values depend on token and position alone, so a model of one layer is exact.
    static const kv::transformer flat = kv::make_random_model({.hidden_size = 32,
                                                               .intermediate_size = 48,
                                                               .layers = 1,
                                                               .heads = 4,
                                                               .kv_heads = 2,
                                                               .head_dim = 16,
                                                               .vocabulary = 131,
                                                               .max_positions = 100000,
                                                               .rope = {},
                                                               .bos = {},
                                                               .eos = {}},
                                                              3);
    kv::thread_pool pool;
    auto store =
        kv::make_cache({flat.shape(16), {.bytes = 1 << 22}}, kv::index::chunk{.least = 8}, kv::recompute::none{});
    kv::chunk_pipeline<decltype(store), kv::transformer> pipeline(store, flat, pool, {.split = {.size = 48}});
    for (const tokens& one : {a, b, c})
        REQUIRE(pipeline.warm(one, {}).has_value());
    const tokens prompt = joined({some(3000, 9), b, a, gap, c, question});
    const auto spliced = pipeline.prefill(prompt, kv::reuse_mode::chunks);
    const auto plain = pipeline.prefill(prompt, kv::reuse_mode::baseline);
    REQUIRE((spliced.has_value() && plain.has_value()));
    CHECK(spliced->counts.approximate == 126);
    CHECK(off(spliced->logits, plain->logits) < 1e-5f * plain->logits.norm());
}

TEST_CASE("approximate rows are never shared: not through the index, a fork, a chunk or a truncation") {
    host h(kv::recompute::chunk_head{.rows = 4, .page_aligned = false});
    for (const tokens& one : {a, b, c})
        h.warm(one);
    const tokens prompt = joined({a, gap, c, b, question}), more = some(40, 8);
    auto filled = h.prefill(prompt);
    const std::size_t exact = filled.sequence.exact();
    CHECK(exact == 45 + 7 + 4); // the tokens before the first recomputed ones are exact
    CHECK(h.store.lookup(prompt).cached_tokens == exact);
    CHECK(same(h.prefill(prompt, kv::reuse_mode::prefix).logits, cold(prompt)));

    REQUIRE(h.pipeline.exact().extend(filled.sequence, more).has_value());
    CHECK(filled.sequence.exact() == exact);

    auto fork = filled.sequence.fork(prompt.size());
    REQUIRE(h.pipeline.exact().extend(fork, more).has_value());
    CHECK(fork.exact() == exact);

    auto shorter = filled.sequence.fork(exact);
    CHECK(shorter.exact() == exact);
    REQUIRE(h.pipeline.exact().extend(shorter, more).has_value());
    CHECK(shorter.exact() == exact + 40); // it has no approximate prefix
    filled.sequence.truncate(exact + 1);
    CHECK(filled.sequence.exact() == exact);
    filled.sequence.truncate(exact);
    REQUIRE(h.pipeline.exact().extend(filled.sequence, more).has_value());
    CHECK(filled.sequence.exact() == exact + 40);

    const tokens whole = joined({prompt, more});
    CHECK(same(h.prefill(whole, kv::reuse_mode::prefix).logits, cold(whole)));
    const tokens exactly = joined({tokens(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(exact)), more});
    const auto again = h.prefill(exactly, kv::reuse_mode::prefix);
    CHECK(again.counts.exact == exactly.size() - 1);
    CHECK(same(again.logits, cold(exactly)));
}

TEST_CASE("an approximate answer has the same bits however it is split, on any threads, alone or in a batch") {
    const tokens prompt = joined({gap, a, c, gap, b, question}), more = some(20, 8);
    const auto answer = [&](std::size_t rows, std::size_t threads) {
        host h(every_other{}, rows, threads);
        for (const tokens& one : {a, b, c})
            h.warm(one);
        auto filled = h.prefill(prompt);
        auto next = h.pipeline.exact().extend(filled.sequence, more, kv::logits_mode::all);
        REQUIRE(next.has_value());
        kv::matrix both(21, 131);
        both << filled.logits, *next;
        return both;
    };
    const kv::matrix one = answer(64, 1);
    for (const std::size_t rows : {1u, 7u, 256u})
        CHECK(same(answer(rows, 1), one));
    CHECK(same(answer(64, 3), one));

    host h(every_other{});
    for (const tokens& each : {a, b, c})
        h.warm(each);
    auto first = h.prefill(prompt), second = h.prefill(joined({gap, a, c, question}));
    auto third = first.sequence.fork(prompt.size());
    const std::vector<kv::batch_entry<decltype(h.store)>> batch{{&second.sequence, more, kv::logits_mode::all},
                                                                {&first.sequence, more, kv::logits_mode::all},
                                                                {&third, more, kv::logits_mode::all}};
    kv::matrix rows;
    REQUIRE(h.pipeline.exact().extend(batch, rows).has_value());
    CHECK(same(rows.middleRows(20, 20), one.bottomRows(20)));
    CHECK(same(rows.bottomRows(20), one.bottomRows(20)));
}

TEST_CASE("a model that does not state that its keys can move is refused chunks, and served the rest") {
    struct stubborn : kv::transformer {
        explicit stubborn(const kv::transformer& of) : kv::transformer(of) {}
        [[nodiscard]] kv::result<void> keys_can_move() const {
            return kv::error{kv::error_code::unsupported, "rope.scaling", "yarn scales the scores by length"};
        }
    };
    static const stubborn still(model());
    kv::thread_pool pool;
    auto store =
        kv::make_cache({still.shape(16), {.bytes = 1 << 22}}, kv::index::chunk{.least = 8}, kv::recompute::none{});
    kv::chunk_pipeline<decltype(store), stubborn> pipeline(store, still, pool, {});
    const auto refused = pipeline.prefill(a, kv::reuse_mode::chunks);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == kv::error_code::unsupported);
    CHECK(refused.error().field == "rope.scaling");
    CHECK(same(pipeline.prefill(a, kv::reuse_mode::prefix)->logits, cold(a)));
}

TEST_CASE("a prompt that finds no page is refused, and nothing is lost") {
    host<kv::recompute::none> h({}, 64, 1, 13);
    for (const tokens& one : {b, c})
        h.warm(one);
    const auto held = h.store.stats();
    const auto refused = h.pipeline.prefill(joined({gap, c, some(150, 6), b, some(60, 7)}), kv::reuse_mode::chunks);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == kv::error_code::out_of_memory);
    CHECK(h.store.stats().in_use == 0);
    CHECK(h.store.check().has_value());
    CHECK(h.store.stats().pages == held.pages);
    CHECK(h.prefill(joined({gap, b, question})).counts.approximate == 33);
}

TEST_CASE("a chunk that was computed after its text's first tokens is stored without them") {
    host<kv::recompute::none> h;
    h.warm(joined({c, a}), {.sink_tokens = 4, .overlap = 6});
    const auto filled = h.prefill(joined({gap, a, question}));
    CHECK(filled.counts.approximate == 45);
    const auto warned = h.pipeline.warm(joined({c, gap}), {});
    REQUIRE(warned.has_value());
    CHECK(warned->chunks == 1);
    CHECK(warned->left_over == 7);
    CHECK(warned->warning.find("7 of 55") == 0);
}

TEST_CASE("under random prompts the invariants hold, and exact sequences stay exact") {
    const unsigned seed = GENERATE(21u, 22u);
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    host h(every_other{}, 64, 1, 60);
    const std::vector<tokens> parts{a, b, c, gap, question, some(20, 31), some(64, 32)};
    std::vector<kv::spliced_prompt<decltype(h.store)>> alive;
    for (int round = 0; round < 60; ++round) {
        tokens prompt;
        for (std::size_t n = 1 + dice() % 4; n > 0; --n)
            prompt = joined({prompt, parts[dice() % parts.size()]});
        prompt.resize(1 + dice() % prompt.size());
        auto filled = h.pipeline.prefill(prompt, dice() % 4 == 0 ? kv::reuse_mode::prefix : kv::reuse_mode::chunks);
        if (filled) {
            if (filled->sequence.exact() == prompt.size())
                CHECK(same(filled->logits, cold(prompt)));
            alive.push_back(std::move(*filled));
        }
        if (!alive.empty() && dice() % 3 == 0)
            alive[dice() % alive.size()].sequence.truncate(0);
        if (alive.size() > 4)
            alive.erase(alive.begin());
        const auto sound = h.store.check();
        INFO((sound ? std::string() : sound.error().field + ": " + sound.error().message));
        REQUIRE(sound.has_value());
    }
}

TEST_CASE("an exact mode is verified bit for bit, an approximate one reports its error") {
    const tokens prompt = joined({gap, a, c, question}), said = some(12, 77);
    host<kv::recompute::none> h;
    for (const tokens& one : {a, c})
        h.warm(one);
    const auto near = kv::verify(h.pipeline, prompt, said, kv::reuse_mode::chunks);
    REQUIRE(near.has_value());
    CHECK(near->counts.approximate == 93);
    CHECK_FALSE(near->same_bits);
    CHECK(near->kl > 0.0);
    CHECK(near->tokens == 13);
    const auto exact = kv::verify(h.pipeline, prompt, said, kv::reuse_mode::prefix);
    REQUIRE(exact.has_value());
    CHECK(exact->counts.exact == prompt.size() - 1);
    CHECK(exact->same_bits);
    CHECK(exact->kl == 0.0);
    CHECK(exact->argmax_agreement == 1.0);
}

TEST_CASE("an answer is generated in every mode, at temperature 0 the likeliest tokens") {
    host h(kv::recompute::chunk_head{});
    h.warm(c);
    const tokens prompt = joined({gap, c, question});
    for (const kv::reuse_mode mode : {kv::reuse_mode::chunks, kv::reuse_mode::baseline, kv::reuse_mode::prefix}) {
        const auto made = kv::generate(h.pipeline, prompt, mode, kv::sampler{}, {.max_tokens = 5},
                                       [](kv::token_id, std::span<const float>) { return true; });
        REQUIRE(made.has_value());
        CHECK(made->ids.size() == 5);
        CHECK(made->prompt.sequence.size() == prompt.size() + 4);
        CHECK(made->first_token <= made->total);
        Eigen::Index best = 0;
        made->prompt.logits.row(0).maxCoeff(&best);
        CHECK(kv::index_of(made->ids[0]) == best);
    }
}
