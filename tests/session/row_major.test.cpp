// SPDX-License-Identifier: MIT
// Promise 1 for row-major codecs: attention reads the rounded rows in a miss and in a hit.
#include <kvcache/codec/row_major.hpp>

#include <utility>
#include <variant>

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

/// One of the row-major codecs, chosen at run time: a pipeline for each takes long to compile.
struct any_rows {
    using role = kv::codec_role;
    template <class... Codecs>
    using states_of = std::variant<typename Codecs::state...>;
    struct state {
        states_of<kv::codec::nhd_f32, kv::codec::nhd_f16, kv::codec::nhd_bf16, kv::codec::hnd_f32, kv::codec::hnd_f16,
                  kv::codec::hnd_bf16>
            one;

        [[nodiscard]] std::size_t page_bytes() const {
            return std::visit([](const auto& of) { return of.page_bytes(); }, one);
        }
        [[nodiscard]] std::string name() const {
            return std::visit([](const auto& of) { return of.name() + of.layout_name(); }, one);
        }
        void encode(std::span<std::byte> page, kv::page_row at, std::span<const float> key,
                    std::span<const float> value) const {
            std::visit([&](const auto& of) { of.encode(page, at, key, value); }, one);
        }
        void copy(std::span<const std::byte> from, std::span<std::byte> to, std::size_t rows) const {
            std::visit([&](const auto& of) { of.copy(from, to, rows); }, one);
        }
        [[nodiscard]] const float* keys(std::span<const std::byte> page, kv::page_tile at, std::span<float> to) const {
            return std::visit([&](const auto& of) { return of.keys(page, at, to); }, one);
        }
        [[nodiscard]] const float* values(std::span<const std::byte> page, kv::page_tile at,
                                          std::span<float> to) const {
            return std::visit([&](const auto& of) { return of.values(page, at, to); }, one);
        }
    };
    std::size_t which = 0;

    [[nodiscard]] state open(kv::page_shape shape) const {
        const auto made = [&](auto codec) { return state{{codec.open(shape)}}; };
        switch (which) {
        case 0:
            return made(kv::codec::nhd_f32{});
        case 1:
            return made(kv::codec::nhd_f16{});
        case 2:
            return made(kv::codec::nhd_bf16{});
        case 3:
            return made(kv::codec::hnd_f32{});
        case 4:
            return made(kv::codec::hnd_f16{});
        default:
            return made(kv::codec::hnd_bf16{});
        }
    }
};
constexpr std::size_t codecs = 6;

struct row_host {
    using cache = kv::cache<any_rows>;

    explicit row_host(std::size_t which, std::uint32_t page = 16, std::size_t threads = 1, std::size_t split = 64)
        : pool(threads),
          store(kv::make_cache({random_model().shape(page), {.bytes = 4 << 20}}, any_rows{which})),
          pipeline(store, random_model(), pool, split) {}
    ~row_host() { CHECK(store.check().has_value()); }

    [[nodiscard]] kv::prefill_result<cache> prefill(const tokens& prompt) {
        auto done = pipeline.prefill(prompt, kv::logits_mode::all);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    /// Runs the tokens of `all` that follow the sequence, `at_once` a call. Returns the last logits.
    [[nodiscard]] kv::matrix go_on(cache::sequence& sequence, const tokens& all, std::size_t at_once) {
        kv::matrix rows;
        while (sequence.size() < all.size()) {
            const auto more = std::span(all).subspan(sequence.size());
            auto done = pipeline.extend(sequence, more.first(std::min(at_once, more.size())), kv::logits_mode::all);
            REQUIRE(done.has_value());
            rows = std::move(*done);
        }
        return rows;
    }

    kv::thread_pool pool;
    cache store;
    kv::pipeline<cache, kv::transformer> pipeline;
};

} // namespace

TEST_CASE("with a row-major codec a hit gives the bits of a miss, for any split, thread count and page size") {
    const tokens prompt = some_tokens(random_model(), 90, 1);
    for (std::size_t which = 0; which < codecs; ++which) {
        const kv::matrix want = row_host(which).prefill(prompt).logits;
        for (const std::uint32_t page : {16u, 48u})
            for (const std::size_t split : {1u, 7u, 100u}) {
                CAPTURE(which, page, split);
                row_host here(which, page, 1 + split % 2, split);
                (void)here.prefill({prompt.begin(), prompt.begin() + 41});
                const auto part = here.prefill(prompt);
                CHECK(part.reused == 41);
                CHECK(same_bits(part.logits, want));
                const auto full = here.prefill(prompt);
                CHECK(full.reused == prompt.size() - 1);
                CHECK(same_bits(full.logits, want));
            }
    }
}

TEST_CASE("with a row-major codec forks and truncations inside a page give the bits of a miss") {
    const tokens prompt = some_tokens(random_model(), 60, 2), other = some_tokens(random_model(), 9, 3);
    for (std::size_t which = 0; which < codecs; ++which) {
        const kv::matrix want = row_host(which).prefill(prompt).logits;
        row_host here(which);
        auto whole = here.prefill({prompt.begin(), prompt.begin() + 50});
        for (const std::size_t at : {1u, 16u, 23u, 49u}) {
            CAPTURE(which, at);
            auto branch = whole.sequence.fork(at);
            REQUIRE(here.pipeline.extend(branch, other).has_value());
            branch.truncate(at);
            CHECK(same_bits(here.go_on(branch, prompt, 4), want));
        }
        CHECK(same_bits(here.go_on(whole.sequence, prompt, 1), want));
    }
}

TEST_CASE("float32 rows in any layout give the bits of tiles") {
    const tokens prompt = some_tokens(random_model(), 70, 4);
    const kv::matrix want = cold(random_model(), prompt);
    CHECK(same_bits(row_host(0).prefill(prompt).logits, want));
    CHECK(same_bits(row_host(3).prefill(prompt).logits, want));
    CHECK_FALSE(same_bits(row_host(1).prefill(prompt).logits, want));
}
