// SPDX-License-Identifier: MIT
#include <kvcache/cache/handle.hpp>
#include <kvcache/codec/row_major.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

using kinds = std::tuple<kv::codec::nhd_f32, kv::codec::nhd_bf16, kv::codec::hnd_f16, kv::codec::f32>;

template <class Cache>
constexpr bool has_runs = kv::row_major_codec<typename Cache::codec_type>;

/// A number as the cache's codec keeps it.
template <class Cache>
float kept(float x) {
    if constexpr (has_runs<Cache>)
        return kv::widen(kv::narrow<typename Cache::codec_type::number>(x));
    else
        return x;
}

/// Compares the rows that a sequence or a lease shows with these names, for one layer and head.
template <class Cache, class Shown>
void check_rows(const Cache& cache, const Shown& shown, std::span<const std::uint64_t> names, std::uint32_t layer,
                std::uint32_t head) {
    const std::size_t dim = cache.shape().head_dim;
    std::vector<float> want_keys, want_values, keys(names.size() * dim), values(keys.size());
    for (const std::uint64_t name : names)
        for (std::size_t d = 0; d < dim; ++d) {
            want_keys.push_back(kept<Cache>(number_of(name, layer, head, d, false)));
            want_values.push_back(kept<Cache>(number_of(name, layer, head, d, true)));
        }
    shown.gather(kv::layer_id{layer}, kv::head_id{head}, keys, values);
    REQUIRE(keys == want_keys);
    REQUIRE(values == want_values);
    if constexpr (has_runs<Cache>) {
        kvcache::ranges::fill(keys, 0.0f);
        kvcache::ranges::fill(values, 0.0f);
        std::size_t next = 0;
        bool in_page = true;
        shown.for_each_run(kv::layer_id{layer}, kv::head_id{head}, [&](const auto& run) {
            static_assert(std::is_same_v<decltype(run), const kv::row_run<typename Cache::codec_type::number>&>);
            in_page = in_page && run.position == next && run.base == 0 && run.rows > 0 &&
                      run.position / cache.shape().tokens == (run.position + run.rows - 1) / cache.shape().tokens;
            for (std::size_t row = 0; row < run.rows; ++row, ++next)
                for (std::size_t d = 0; d < dim; ++d) {
                    keys[next * dim + d] = kv::widen(run.keys[row * run.stride + d]);
                    values[next * dim + d] = kv::widen(run.values[row * run.stride + d]);
                }
        });
        REQUIRE(in_page);
        REQUIRE(next == names.size());
        REQUIRE(keys == want_keys);
        REQUIRE(values == want_values);
    }
}

template <class Cache, class Shown>
void check_all_rows(const Cache& cache, const Shown& shown, std::span<const std::uint64_t> names) {
    for (std::uint32_t layer = 0; layer < cache.shape().layers; ++layer)
        for (std::uint32_t head = 0; head < cache.shape().kv_heads; ++head)
            check_rows(cache, shown, names, layer, head);
}

template <class Codec>
void play(std::uint64_t seed, std::uint32_t tokens) {
    INFO("seed " << seed << ", pages of " << tokens);
    const kv::page_shape shape{.layers = 2, .kv_heads = 3, .head_dim = 6, .tokens = tokens};
    auto cache = kv::make_cache({shape, {.bytes = 40 * Codec{}.open(shape).page_bytes()}}, Codec{});
    struct one {
        typename decltype(cache)::sequence rows;
        past known = {};
    };
    std::vector<one> live;
    live.push_back({cache.open()});
    seeded choose(seed);
    for (std::size_t round = 0; round < 120; ++round) {
        CAPTURE(round);
        one& at = live[choose(live.size())];
        switch (choose(4)) {
        case 0:
            if (live.size() < 6) {
                const std::size_t cut = choose(at.known.size() + 1);
                one fork{at.rows.fork(cut), at.known.first(cut)};
                live.push_back(std::move(fork));
            } else {
                std::swap(at, live.back());
                live.pop_back();
            }
            break;
        case 1:
            at.known.resize(choose(at.known.size() + 1));
            at.rows.truncate(at.known.size());
            break;
        default: {
            auto lease = cache.reserve(at.rows, 1 + choose(2 * tokens));
            if (!lease)
                break;
            past ahead = at.known;
            for (std::size_t row = 0; row < lease->rows(); ++row) {
                ahead.push(kv::token_id{static_cast<std::int32_t>(choose(3))});
                write_row(*lease, shape, row, ahead.names.back());
            }
            check_all_rows(cache, *lease, ahead.names);
            check_all_rows(cache, at.rows, at.known.names); // reserved rows are not its own yet
            if (choose(4) == 0)
                break; // the lease rolls back
            const std::size_t before = at.known.size(), committed = choose(lease->rows() + 1);
            at.known = ahead.first(before + committed);
            lease->commit(std::span<const kv::token_id>(at.known.tokens).subspan(before));
        }
        }
        for (const one& each : live)
            check_all_rows(cache, each.rows, each.known.names);
    }
    CHECK(cache.check());
}

} // namespace

TEMPLATE_LIST_TEST_CASE("runs and gathered rows are the written ones after forks, truncations and copies on write", "",
                        kinds) {
    for (const std::uint32_t tokens : {16u, 48u})
        for (std::uint64_t seed = 0; seed < 3; ++seed)
            play<TestType>(seed, tokens);
}

TEST_CASE("runs of a sequence with erased tokens have the base of their keys") {
    const kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 4, .tokens = 16};
    auto cache = kv::make_cache({shape, {.bytes = 1 << 16}}, kv::codec::hnd_f32{});
    auto sequence = cache.open();
    past known;
    REQUIRE(append(cache, sequence, known, counted(0, 40)));
    const auto shorter = sequence.erase_range(10, 20);
    REQUIRE(shorter.has_value());
    CHECK(shorter->pages().spliced);
    CHECK_FALSE(sequence.pages().spliced);
    std::vector<std::size_t> positions;
    bool right = true;
    shorter->for_each_run({}, {}, [&](const kv::row_run<float>& run) {
        right = right && run.base == (run.position < 10 ? 0 : -20);
        for (std::size_t row = 0; row < run.rows; ++row) {
            positions.push_back(run.position + row);
            const std::size_t before = positions.back() < 10 ? positions.back() : positions.back() + 20;
            right = right && run.keys[row * run.stride] == number_of(known.names[before], 0, 0, 0, false);
        }
    });
    CHECK(right);
    CHECK(positions.size() == 20);
    CHECK(kvcache::ranges::is_sorted(positions));
}

TEST_CASE("the pages of a sequence are its table") {
    auto cache = kv::make_cache({{.layers = 1, .kv_heads = 2, .head_dim = 4, .tokens = 16}, {.bytes = 1 << 16}},
                                kv::codec::nhd_f32{});
    auto sequence = cache.open();
    past known;
    REQUIRE(append(cache, sequence, known, counted(0, 20)));
    CHECK(kvcache::ranges::equal(sequence.pages().table, sequence.table()));
    CHECK(sequence.pages().residual.empty());
}

TEST_CASE("rows are read of an existing layer and head, into memory of their size") {
    auto cache = kv::make_cache({{.layers = 1, .kv_heads = 2, .head_dim = 4, .tokens = 16}, {.bytes = 1 << 16}},
                                kv::codec::nhd_f32{});
    auto sequence = cache.open();
    past known;
    REQUIRE(append(cache, sequence, known, counted(0, 20)));
    std::vector<float> keys(80), values(80);
    const auto nothing = [](const auto&) {};
    CHECK_NOTHROW(sequence.gather(kv::layer_id{0}, kv::head_id{1}, keys, values));
    CHECK_THROWS_AS(sequence.gather(kv::layer_id{0}, kv::head_id{2}, keys, values), kv::contract_violation);
    CHECK_THROWS_AS(sequence.for_each_run(kv::layer_id{1}, kv::head_id{0}, nothing), kv::contract_violation);
    values.pop_back();
    CHECK_THROWS_AS(sequence.gather(kv::layer_id{0}, kv::head_id{1}, keys, values), kv::contract_violation);
    auto lease = cache.reserve(sequence, 3);
    REQUIRE(lease.has_value());
    lease->rollback();
    CHECK_THROWS_AS(lease->for_each_run({}, {}, nothing), kv::contract_violation);
}
