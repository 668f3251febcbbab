// SPDX-License-Identifier: MIT
// Caches of quantized pages without a model: every page and every full-precision row is compared with what its tokens
// give.
#include <kvcache/cache/compose.hpp>
#include <kvcache/cache/residual.hpp>
#include <kvcache/codec/hadamard.hpp>
#include <kvcache/codec/int4.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/keep_exact.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
using kv::testing::detail::choices;

namespace {

constexpr kv::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 16, .tokens = 16};
using tokens = std::vector<kv::token_id>;

// The numbers of a row are a function of all tokens up to it.
std::vector<float> numbers(std::uint64_t past, std::uint32_t layer, std::uint64_t part) {
    std::vector<float> made(std::size_t{shape.kv_heads} * shape.head_dim);
    for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = static_cast<float>(kv::mix64(past + layer * 1000 + part * 100 + i) % 4096) / 512.0f - 4.0f;
    return made;
}
std::uint64_t past_of(std::uint64_t past, kv::token_id token) {
    return kv::mix64(past * 31 + static_cast<std::uint64_t>(kv::index_of(token)) + 1);
}

// One page of a prefix: its residual rows, and its bytes once it is full.
template <class Codec>
struct expected_page {
    kv::codec::residual_page rows{shape};
    std::vector<std::byte> bytes;

    expected_page(const Codec& codec, std::span<const kv::token_id> prefix, std::size_t page)
        : bytes(codec.page_bytes()) {
        std::uint64_t past = 7;
        for (std::size_t i = 0; i < std::min(prefix.size(), (page + 1) * shape.tokens); ++i) {
            past = past_of(past, prefix[i]);
            if (i >= page * shape.tokens)
                for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
                    rows.write(codec, bytes, kv::layer_id{layer}, static_cast<std::uint32_t>(i % shape.tokens),
                               numbers(past, layer, 1), numbers(past, layer, 2));
        }
    }
};

// Whether the first rows of two residual pages are the same.
bool alike(std::span<const std::byte> a, std::span<const std::byte> b, std::size_t rows) {
    const auto reader = kv::codec::f32{}.open(shape);
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
        for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
            const kv::page_tile at{kv::layer_id{layer}, kv::head_id{head}, 0};
            const float *k = reader.keys(a, at, {}), *l = reader.keys(b, at, {});
            const float *v = reader.values(a, at, {}), *w = reader.values(b, at, {});
            for (std::size_t row = 0; row < rows; ++row)
                for (std::size_t d = 0; d < shape.head_dim; ++d)
                    if (k[d * kv::tile_tokens + row] != l[d * kv::tile_tokens + row] ||
                        v[row * shape.head_dim + d] != w[row * shape.head_dim + d])
                        return false;
        }
    return true;
}

template <class Codec>
class host {
    using cache_type = kv::cache<Codec>;
    using sequence = typename cache_type::sequence;

public:
    host(Codec codec, std::uint64_t seed)
        : choose_(seed),
          merges_(seed % 3 != 0),
          cache_(kv::make_cache({.shape = shape,
                                 .limit = {.bytes = 30 * codec.open(shape).page_bytes() +
                                                    10 * kv::codec::residual_page::bytes_for(shape)},
                                 .merge_equal_pages = merges_},
                                codec)),
          window_(cache_.codec().window()) {}

    void step() {
        if (live_.size() < 2 || choose_.one_in(3))
            acquire();
        else if (sequence& one = live_[choose_.below(live_.size())]; choose_.one_in(3))
            extend(one, some(1 + choose_.below(40)));
        else if (choose_.one_in(3))
            live_.push_back(one.fork(choose_.below(one.size() + 1)));
        else if (choose_.one_in(2))
            one.truncate(choose_.below(one.size() + 1));
        else
            live_.erase(live_.begin() + (&one - live_.data()));
        const auto sound = cache_.check();
        INFO((sound ? std::string() : sound.error().message));
        REQUIRE(sound);
        for (const sequence& one : live_) {
            check_pages(one);
            const auto found = cache_.lookup(one.tokens());
            if (merges_) // otherwise the index may know another page of the same tokens, without its rows
                REQUIRE(found.cached_tokens >= one.size() / shape.tokens * shape.tokens);
            REQUIRE(found.common_prefix >= found.cached_tokens);
        }
    }

private:
    // Few different tokens, so that prompts share prefixes.
    tokens some(std::size_t count) {
        tokens made;
        for (; count > 0; --count)
            made.push_back(kv::token_id{static_cast<std::int32_t>(choose_.one_in(20) ? choose_.below(3) : 0)});
        return made;
    }

    void acquire() {
        const tokens prompt = some(1 + choose_.below(80));
        const auto found = cache_.lookup(prompt);
        auto request =
            cache_.acquire(prompt, {.max_batch_tokens = choose_.one_in(2) ? 1 + choose_.below(20) : prompt.size()});
        if (!request) {
            REQUIRE(request.error().code == kv::error_code::out_of_memory);
            live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(choose_.below(live_.size())));
            return;
        }
        REQUIRE(request->found.cached_tokens == found.cached_tokens);
        REQUIRE(request->lease.first() <= found.cached_tokens);
        REQUIRE(request->lease.first() + request->lease.rows() == prompt.size());
        compute(request->sequence, request->lease, std::span(prompt).subspan(request->lease.first()));
        live_.push_back(std::move(request->sequence));
    }

    void extend(sequence& one, const tokens& more) {
        if (auto lease = cache_.reserve(one, more.size()))
            compute(one, *lease, more);
    }

    // Writes the rows of a lease, and commits all of them or some.
    void compute(sequence& of, typename cache_type::lease& lease, std::span<const kv::token_id> more) {
        tokens all(of.tokens().begin(), of.tokens().end());
        std::uint64_t past = 7;
        for (const kv::token_id token : all)
            past = past_of(past, token);
        for (std::size_t row = 0; row < more.size(); ++row) {
            all.push_back(more[row]);
            past = past_of(past, more[row]);
            for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
                lease.write(kv::layer_id{layer}, row, numbers(past, layer, 1), numbers(past, layer, 2));
            check_window(lease, all);
        }
        const bool whole = lease.first() % shape.tokens == 0; // its pages could be put in place
        std::vector<bool> keeps;
        for (std::size_t page = 0; whole && page < lease.opened().taken_pages(); ++page)
            keeps.push_back(!lease.opened().residual_bytes(page).empty());
        const std::size_t before = of.size(), count = choose_.one_in(4) ? choose_.below(more.size() + 1) : more.size();
        lease.commit(more.first(count));
        REQUIRE(of.size() <= before + count);
        REQUIRE(kvcache::ranges::equal(of.tokens(), std::span(all).first(of.size())));
        if (count < more.size())
            return;
        REQUIRE(of.size() == before + count);
        for (std::size_t page = 0; page < keeps.size(); ++page)
            REQUIRE(keeps[page] ==
                    !cache_.core().residual_bytes(of.table()[before / shape.tokens + page].page).empty());
    }

    // A query of the last row finds the full-precision rows of its window.
    void check_window(const typename cache_type::lease& lease, const tokens& all) {
        const auto pages = lease.pages();
        const std::size_t own = (all.size() - 1) / shape.tokens;
        for (std::size_t page = 0; page <= own; ++page) {
            if (!window_.covers(page, own))
                continue;
            REQUIRE(page < pages.residual.size());
            REQUIRE(pages.residual[page] != nullptr);
            const expected_page<typename cache_type::codec_type> right(cache_.codec(), all, page);
            REQUIRE(alike(pages.residual[page]->bytes(), right.rows.bytes(),
                          std::min<std::size_t>(all.size() - page * shape.tokens, shape.tokens)));
        }
    }

    // Full pages have the bytes of their rows, quantized once.
    void check_pages(const sequence& one) {
        for (std::size_t page = 0; page < one.size() / shape.tokens; ++page) {
            const expected_page<typename cache_type::codec_type> right(cache_.codec(), one.tokens(), page);
            REQUIRE(kvcache::ranges::equal(cache_.storage().bytes(one.table()[page].page), right.bytes));
        }
    }

    choices choose_;
    bool merges_;
    cache_type cache_;
    kv::residual_window window_;
    std::vector<sequence> live_;
};

template <class Codec>
void play(Codec codec) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        host<Codec> one(codec, seed);
        for (int step = 0; step < 40; ++step)
            one.step();
    }
}

} // namespace

TEST_CASE("quantized pages and the rows kept in full precision are those of their tokens") {
    SECTION("int8") {
        play(kv::codec::int8{});
    }
    SECTION("the last two pages are kept") {
        play(kv::codec::keep_recent<kv::codec::int8>{.pages = 2});
    }
    SECTION("the first pages are kept") {
        play(kv::codec::keep_sinks<kv::codec::int4>{.tokens = 20});
    }
    SECTION("both are kept") {
        play(kv::codec::keep_sinks<kv::codec::keep_recent<kv::codec::hadamard<kv::codec::int4>>>{
            .inner = {.inner = {}, .pages = 1}, .tokens = 1});
    }
}

TEST_CASE("a sequence that grows keeps the rows of its last pages alone") {
    for (const std::size_t recent : {0u, 1u, 3u}) {
        CAPTURE(recent);
        auto cache = kv::make_cache({.shape = shape, .limit = {.pages = 200}},
                                    kv::codec::keep_recent<kv::codec::int8>{.pages = recent});
        auto sequence = cache.open();
        const auto row = numbers(1, 0, 1);
        for (std::size_t step = 0; step < 60; ++step) {
            const tokens more(1 + step % 5 * 7, kv::token_id{3});
            auto lease = cache.reserve(sequence, more.size());
            REQUIRE(lease);
            for (std::size_t i = 0; i < more.size(); ++i)
                for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
                    lease->write(kv::layer_id{layer}, i, row, row);
            lease->commit(more);
            REQUIRE(cache.stats().residual_pages ==
                    std::min(recent, sequence.size() / shape.tokens) + (sequence.size() % shape.tokens != 0 ? 1 : 0));
        }
    }
}
