// SPDX-License-Identifier: MIT
// Chunk reuse with codecs of whole pages.
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/codebook.hpp>
#include <kvcache/codec/hadamard.hpp>
#include <kvcache/codec/int4.hpp>
#include <kvcache/codec/int4_per_channel.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/keep_exact.hpp>
#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/recompute/all.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/pipeline.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "session/chunk_prompts.hpp"
#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using small::joined;
using small::some;
using small::tokens;

const kv::transformer& model() {
    static const kv::transformer made = kv::make_random_model(small::config_of(3), 7);
    return made;
}

// Whole pages of float32: what they are read as is what was written.
struct whole_f32 {
    using role = kv::codec_role;
    struct coder_type {
        std::size_t numbers;
        [[nodiscard]] static std::size_t tokens() { return kv::tile_tokens; }
        [[nodiscard]] std::size_t bytes() const { return numbers * sizeof(float); }
        [[nodiscard]] static std::string name() { return "whole f32"; }
        void encode(const float* from, std::byte* to) const { std::memcpy(to, from, bytes()); }
        void decode(const std::byte* from, std::size_t, float* out) const { std::memcpy(out, from, bytes()); }
        static void transform(std::span<float>) {}
        static void inverse_transform(std::span<float>) {}
    };
    [[nodiscard]] coder_type coder(kv::codec::kv_kind side, kv::page_shape shape) const {
        return {kv::codec::detail::tile_numbers(side, shape.head_dim)};
    }
    [[nodiscard]] auto open(kv::page_shape shape) const { return kv::codec::detail::open_sides(*this, *this, shape); }
};

using every_other = small::every_other<1>; // the first token is kept

// The tokens that are farther off than half of all, in the second layer; the first token is kept.
struct far_off {
    using role = kv::recompute_role;
    kv::deviation_metric metric = kv::deviation_metric::keys;
    struct state : kv::recompute::exact_prefix::state {
        kv::deviation_metric metric;
        [[nodiscard]] kv::deviation_metric compared() const { return metric; }
        [[nodiscard]] static std::size_t check_layer() { return 1; }
        static void select(std::span<const kv::reused_span> runs, std::span<const float> off,
                           std::vector<std::size_t>& positions) {
            std::vector<float> sorted(off.begin(), off.end());
            std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2),
                             sorted.end());
            std::size_t i = 0;
            for (const kv::reused_span& run : runs)
                for (std::size_t at = run.first; at < run.first + run.count; ++at, ++i)
                    if (i > 0 && off[i] > sorted[sorted.size() / 2])
                        positions.push_back(at);
        }
    };
    [[nodiscard]] state open(kv::page_shape) const { return {{}, metric}; }
};
static_assert(kv::deviation_recompute_state<far_off::state>);

// Recomputes everything, and records the deviations in the first layer.
struct first_layer {
    using role = kv::recompute_role;
    kv::deviation_metric metric = kv::deviation_metric::keys;
    std::vector<float>* seen = nullptr;
    struct state : kv::recompute::exact_prefix::state {
        kv::deviation_metric metric;
        std::vector<float>* seen;
        [[nodiscard]] kv::deviation_metric compared() const { return metric; }
        [[nodiscard]] static std::size_t check_layer() { return 0; }
        void select(std::span<const kv::reused_span> runs, std::span<const float> off,
                    std::vector<std::size_t>& positions) const {
            seen->assign(off.begin(), off.end());
            kv::recompute::full{}.open({}).select(runs, positions);
        }
    };
    [[nodiscard]] state open(kv::page_shape) const { return {{}, metric, seen}; }
};

// Pages hold whole groups of the tokens that a codec encodes together.
template <class Codec>
inline constexpr std::size_t page_tokens = 16;
template <>
inline constexpr std::size_t page_tokens<kv::codec::int4_per_channel> = 32;
template <class Inner>
inline constexpr std::size_t page_tokens<kv::codec::keep_sinks<Inner>> = page_tokens<Inner>;
template <class Inner>
inline constexpr std::size_t page_tokens<kv::codec::keep_recent<Inner>> = page_tokens<Inner>;

template <class Codec, class Policy>
struct host {
    using cache = kv::cache<kv::index::chunk, Policy, Codec>;

    explicit host(Policy policy = {}, Codec codec = {}, std::size_t rows = 64, std::size_t threads = 1,
                  std::size_t pages = 600)
        : pool(threads),
          store(kv::make_cache({model().shape(page_tokens<Codec>), {.pages = pages}}, kv::index::chunk{.least = 8},
                               std::move(policy), std::move(codec))),
          pipeline(store, model(), pool, {.split = {.size = 64, .least = 8}, .max_batch_tokens = rows}) {}
    ~host() {
        const auto sound = store.check();
        CHECK((sound ? std::string() : sound.error().field + " " + sound.error().message) == "");
    }
    auto prefill(const tokens& prompt, kv::reuse_mode mode = kv::reuse_mode::chunks) {
        auto done = pipeline.prefill(prompt, mode);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    void warm(std::initializer_list<tokens> texts) {
        for (const tokens& one : texts)
            REQUIRE(pipeline.warm(one, {}).has_value());
    }

    kv::thread_pool pool;
    cache store;
    kv::chunk_pipeline<cache, kv::transformer> pipeline;
};

bool same(const kv::matrix& a, const kv::matrix& b) {
    return a.size() == b.size() && a.size() > 0 &&
           std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)) == 0;
}

// Chunks of whole pages, and texts between them.
const tokens a = some(64, 1), b = some(32, 2), c = some(64, 3), question = some(9, 4), gap = some(32, 5),
             odd = some(7, 6);

} // namespace

using page_codecs = std::tuple<kv::codec::int8, kv::codec::hadamard<kv::codec::int4>, kv::codec::int4_per_channel,
                               kv::codec::codebook<>, whole_f32>;
// For tests that take long with sanitizers: a codec that is read undecoded, one that turns rows, one of channels.
using few_codecs = std::tuple<kv::codec::int8, kv::codec::hadamard<kv::codec::int4>, kv::codec::int4_per_channel>;

TEST_CASE("whole pages of float32 give what rows of float32 give, the same bits where the tables are the same") {
    const tokens before = GENERATE(tokens(), odd, gap, some(21, 9));
    const auto answers = [&](auto codec, auto policy) {
        host h(policy, codec);
        h.warm({a, b, c});
        auto filled = h.prefill(joined({before, c, b, odd, a, question}));
        CHECK(filled.counts.approximate > 0);
        auto more = h.pipeline.exact().extend(filled.sequence, some(40, 8), kv::logits_mode::all);
        REQUIRE(more.has_value());
        kv::matrix both(41, 131);
        both << filled.logits, *more;
        return both;
    };
    const auto agree = [&](auto policy) {
        const kv::matrix pages = answers(whole_f32{}, policy), rows = answers(kv::codec::f32{}, policy);
        if (before.size() % 16 == 0) // otherwise rows before a chunk share a page with rows inside it, or do not
            CHECK(same(pages, rows));
        CHECK((pages - rows).cwiseAbs().maxCoeff() < 1e-5f * rows.norm());
    };
    agree(kv::recompute::none{});
    agree(every_other{});
    agree(kv::recompute::chunk_head{.rows = 16});
    agree(far_off{kv::deviation_metric::keys});
    agree(far_off{kv::deviation_metric::values});
}

TEMPLATE_LIST_TEST_CASE("a chunk placed from quantized pages is those pages", "", page_codecs) {
    host<TestType, kv::recompute::none> h;
    h.warm({a, c});
    const auto alone = h.prefill(c, kv::reuse_mode::prefix); // its last token runs again
    const auto filled = h.prefill(joined({gap, a, odd, c, question}));
    CHECK(filled.counts.approximate == 64 + 64);
    std::vector<kv::page_id> placed;
    for (const kv::page_entry& entry : filled.sequence.table())
        if (entry.base == 32 + 64 + 7)
            placed.push_back(entry.page);
    REQUIRE(placed.size() == 64 / page_tokens<TestType>);
    for (std::size_t i = 0; i + 1 < placed.size(); ++i)
        CHECK(placed[i] == alone.sequence.table()[i].page);
}

TEMPLATE_LIST_TEST_CASE("where every token runs again, quantized chunks are exact", "", page_codecs) {
    host<TestType, kv::recompute::full> h;
    h.warm({a, b, c});
    for (const tokens& prompt :
         {joined({c, odd, a, b, question}), joined({odd, b, a}), joined({question, a, gap, c})}) {
        const auto filled = h.prefill(prompt);
        CHECK(filled.counts.recomputed > 0);
        CHECK(filled.sequence.exact() == prompt.size());
        host<TestType, kv::recompute::none> fresh;
        CHECK(same(filled.logits, fresh.prefill(prompt, kv::reuse_mode::baseline).logits));
    }
}

TEMPLATE_LIST_TEST_CASE("tokens of quantized chunks are compared as they are stored", "", page_codecs) {
    // The first layer's rows depend on token and position alone: they are off by what the codec rounds.
    for (const kv::deviation_metric metric : {kv::deviation_metric::keys, kv::deviation_metric::values}) {
        std::vector<float> off;
        host h(first_layer{metric, &off}, TestType{});
        h.warm({a, b, c});
        static_cast<void>(h.prefill(joined({odd, c, b, question})));
        REQUIRE(off.size() == c.size() + b.size());
        host<whole_f32, kv::recompute::none> stored;
        stored.warm({c});
        const auto exact = stored.prefill(c, kv::reuse_mode::prefix);
        std::vector<float> scratch(1024);
        double squares = 0.0;
        for (const std::uint32_t head : {0u, 1u}) {
            const kv::page_tile tile{kv::layer_id{0}, kv::head_id{head}, 0};
            const auto bytes = std::span<const std::byte>(stored.store.storage().bytes(exact.sequence.table()[0].page));
            const bool keys = metric == kv::deviation_metric::keys;
            const float* rows = keys ? stored.store.codec().keys(bytes, tile, scratch)
                                     : stored.store.codec().values(bytes, tile, scratch);
            for (std::size_t i = 0; i < kv::tile_tokens * (keys ? 24 : kv::padded_head_dim(24)); ++i)
                squares += std::pow(static_cast<double>(rows[i]), 2) / kv::tile_tokens;
        }
        CHECK(*std::max_element(off.begin(), off.end()) < 0.1 * squares); // rows that are turned differently: 2
    }
    host h(kv::recompute::blend{.fraction = 0.3}, TestType{});
    h.warm({a, b, c});
    const auto filled = h.prefill(joined({gap, c, b, odd, a, question}));
    CHECK(filled.counts.recomputed == 160 * 3 / 10);
}

TEMPLATE_LIST_TEST_CASE(
    "answers on quantized chunks have the same bits however they are split, on any threads, alone or "
    "in a batch",
    "", few_codecs) {
    const tokens prompt = joined({odd, a, c, gap, b, question}), more = some(40, 8);
    const auto answer = [&](std::size_t rows, std::size_t threads, auto codec) {
        host h(every_other{}, codec, rows, threads);
        h.warm({a, b, c});
        auto filled = h.prefill(prompt);
        CHECK(filled.counts.approximate > 40);
        auto fork = filled.sequence.fork(prompt.size());
        kv::matrix both(41, 131);
        both.row(0) = filled.logits;
        for (std::size_t i = 0, step = 1; i < 40; i += step, step = std::min(step + 2, 40 - i)) {
            auto next =
                h.pipeline.exact().extend(filled.sequence, std::span(more).subspan(i, step), kv::logits_mode::all);
            REQUIRE(next.has_value());
            both.middleRows(static_cast<Eigen::Index>(1 + i), static_cast<Eigen::Index>(step)) = *next;
        }
        auto second = h.prefill(joined({gap, a, c, question}));
        const std::vector<kv::batch_entry<decltype(h.store)>> batch{{&second.sequence, more, kv::logits_mode::all},
                                                                    {&fork, more, kv::logits_mode::all}};
        kv::matrix together;
        REQUIRE(h.pipeline.exact().extend(batch, together).has_value());
        CHECK(same(together.bottomRows(40), both.bottomRows(40)));
        return both;
    };
    const kv::matrix whole = answer(256, 1, TestType{});
    for (const std::size_t rows : {1u, 7u})
        CHECK(same(answer(rows, 1, TestType{}), whole));
    CHECK(same(answer(64, 3, TestType{}), whole));
    const auto holds = [&](auto codec) { CHECK(same(answer(7, 1, codec), answer(64, 2, codec))); };
    holds(kv::codec::keep_sinks<TestType>{TestType{}, 40});
    holds(kv::codec::keep_recent<TestType>{TestType{}, 2});
}

TEMPLATE_LIST_TEST_CASE("sequences with quantized chunks are forked, cut and continued at random", "", few_codecs) {
    const unsigned seed = GENERATE(21u, 22u);
    INFO("seed " << seed);
    const auto holds = [&](auto codec) {
        std::mt19937 dice(seed);
        host h(every_other{}, codec, 64, 1, 90);
        const std::vector<tokens> parts{a, b, c, gap, odd, question, some(20, 31), some(64, 32)};
        using sequence = typename decltype(h.store)::sequence;
        std::vector<sequence> alive;
        for (int round = 0; round < 25; ++round) {
            tokens prompt;
            for (std::size_t n = 1 + dice() % 3; n > 0; --n)
                prompt = joined({prompt, parts[dice() % parts.size()]});
            prompt.resize(1 + dice() % prompt.size());
            auto filled = h.pipeline.prefill(prompt, dice() % 4 == 0 ? kv::reuse_mode::prefix : kv::reuse_mode::chunks);
            if (filled) {
                if (filled->sequence.exact() == prompt.size() && round % 4 == 0) {
                    host fresh(every_other{}, codec);
                    CHECK(same(filled->logits, fresh.prefill(prompt, kv::reuse_mode::baseline).logits));
                }
                alive.push_back(std::move(filled->sequence));
            }
            if (!alive.empty()) {
                sequence& one = alive[dice() % alive.size()];
                const std::size_t cut = dice() % (one.size() + 1);
                if (dice() % 2 == 0)
                    one.truncate(cut);
                else
                    alive.push_back(one.fork(cut));
                // Where it ends now it goes on as if it had never been longer.
                sequence& other = alive[dice() % alive.size()];
                auto twin = other.fork(other.size());
                REQUIRE(twin.size() == other.size());
                const tokens more = some(1 + dice() % 40, static_cast<unsigned>(dice()));
                auto here = h.pipeline.exact().extend(other, more), there = h.pipeline.exact().extend(twin, more);
                if (here && there)
                    CHECK(same(*here, *there));
            }
            while (alive.size() > 4)
                alive.erase(alive.begin());
            const auto sound = h.store.check();
            INFO((sound ? std::string() : sound.error().field + ": " + sound.error().message));
            REQUIRE(sound.has_value());
        }
    };
    holds(TestType{});
    holds(kv::codec::keep_recent<TestType>{TestType{}, 2});
}
