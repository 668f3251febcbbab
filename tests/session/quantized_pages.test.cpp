// SPDX-License-Identifier: MIT
// Promise 1 for codecs of whole pages: for each page size the bits of a cold run, whatever was reused.
#include <kvcache/cache/any_codec.hpp>

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

// Codecs missing from the list: other sizes, and nested wrappers.
using more_codecs = std::tuple<
    kv::codec::bf16, kv::codec::f16, kv::codec::int8, kv::codec::int8_grouped, kv::codec::int4,
    kv::codec::int4_per_channel, kv::codec::hadamard<kv::codec::int4>, kv::codec::codebook<4>, kv::codec::codebook<3>,
    kv::codec::codebook<2>, kv::codec::mixed_kv<kv::codec::int4_per_channel, kv::codec::int4>,
    kv::codec::mixed_kv<kv::codec::hadamard<kv::codec::int8>, kv::codec::codebook<3>>,
    kv::codec::mixed_kv<kv::codec::hadamard<kv::codec::int4_per_channel>, kv::codec::hadamard<kv::codec::int4>>,
    kv::codec::keep_sinks<kv::codec::int4>, kv::codec::keep_recent<kv::codec::int8>,
    kv::codec::keep_recent<kv::codec::keep_sinks<kv::codec::hadamard<kv::codec::int4>>>>;
using any = kv::any_codec<more_codecs>;
using quantized_cache = kv::cache<any>;

std::vector<std::string> names() {
    const std::string all = any::names();
    std::vector<std::string> made(1);
    int depth = 0;
    for (const char c : all) {
        depth += c == '<' ? 1 : c == '>' ? -1 : 0;
        if (c == ',' && depth == 0)
            made.emplace_back();
        else if (c != ' ' || depth > 0)
            made.back() += c;
    }
    return made;
}

struct quantized_host {
    quantized_host(const std::string& codec, std::uint32_t page, std::size_t threads = 1, std::size_t split = 64,
                   std::size_t pages = 600)
        : quantized_host(*any::named(codec), page, threads, split, pages) {}
    quantized_host(const any& codec, std::uint32_t page, std::size_t threads, std::size_t split, std::size_t pages)
        : pool(threads),
          store(kv::make_cache(
              {random_model().shape(page), {.bytes = pages * codec.open(random_model().shape(page)).page_bytes()}},
              codec)),
          pipeline(store, random_model(), pool, split) {}
    ~quantized_host() {
        const auto sound = store.check();
        CHECK((sound ? std::string() : sound.error().message) == "");
    }

    [[nodiscard]] kv::prefill_result<quantized_cache> prefill(const tokens& prompt) {
        auto done = pipeline.prefill(prompt, kv::logits_mode::all);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    // Runs the tokens of `all` that follow the sequence.
    [[nodiscard]] kv::matrix go_on(quantized_cache::sequence& sequence, const tokens& all) {
        const tokens more(all.begin() + static_cast<std::ptrdiff_t>(sequence.size()), all.end());
        auto rows = pipeline.extend(sequence, more, kv::logits_mode::all);
        REQUIRE(rows.has_value());
        return std::move(*rows);
    }

    kv::thread_pool pool;
    quantized_cache store;
    kv::pipeline<quantized_cache, kv::transformer> pipeline;
};

kv::matrix cold(const std::string& codec, std::uint32_t page, const tokens& prompt) {
    quantized_host fresh(codec, page);
    return fresh.prefill(prompt).logits;
}

} // namespace

TEST_CASE("a coded hit gives the bits of a miss for any split, thread count and page size") {
    for (const std::string& codec : names())
        for (const std::uint32_t page : {32u, 64u}) {
            CAPTURE(codec, page);
            const tokens prompt = some_tokens(random_model(), 140, 1);
            const kv::matrix want = cold(codec, page, prompt);
            for (const std::size_t split : {1u, 7u, 33u, 100u, 1000u}) {
                CAPTURE(split);
                quantized_host here(codec, page, 1 + split % 2, split);
                CHECK(same_bits(here.prefill({prompt.begin(), prompt.begin() + 75}).logits, first_rows(want, 75)));
                const auto part = here.prefill(prompt);
                CHECK(part.reused % page == 0);
                CHECK(part.reused + part.prefilled == prompt.size());
                CHECK(same_bits(part.logits, want));
                const auto warm = here.prefill(prompt);
                CHECK(warm.reused == prompt.size() / page * page);
                CHECK(same_bits(warm.logits, want));
            }
        }
}

TEST_CASE("forks, rollbacks and speculation across the end of a coded page give the bits of a miss") {
    const tokens prompt = some_tokens(random_model(), 100, 2), wrong = some_tokens(random_model(), 20, 3);
    for (const std::string& codec : names()) {
        CAPTURE(codec);
        const kv::matrix want = cold(codec, 32, prompt);
        quantized_host here(codec, 32);
        auto whole = here.prefill({prompt.begin(), prompt.begin() + 90});
        for (const std::size_t at : {0u, 1u, 31u, 32u, 33u, 63u, 64u, 65u, 89u, 90u}) {
            CAPTURE(at);
            auto branch = whole.sequence.fork(at);
            CHECK(branch.size() <= at);
            CHECK(same_bits(here.go_on(branch, prompt), want));
            branch.truncate(at);
            CHECK(same_bits(here.go_on(branch, prompt), want));
            CHECK(here.store.check().has_value());
        }
        // Drafts that are partly right: rows that were written, read and truncated.
        auto drafting = here.prefill({prompt.begin(), prompt.begin() + 50});
        for (std::size_t n = 50; n < 98; n += 3) {
            tokens draft(prompt.begin() + static_cast<std::ptrdiff_t>(n),
                         prompt.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(n + 2, 100)));
            draft.insert(draft.end(), wrong.begin(), wrong.begin() + 16);
            REQUIRE(here.pipeline.extend(drafting.sequence, draft).has_value());
            drafting.sequence.truncate(n + 2);
            const tokens next(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(n + 3));
            CHECK(same_bits(here.go_on(drafting.sequence, next), first_rows(want, n + 3)));
        }
    }
}

TEST_CASE("token by token, and in a batch with strangers, coded pages give the bits of a long run") {
    for (const std::string& codec : names()) {
        CAPTURE(codec);
        quantized_host here(codec, 32, 2, 48);
        std::vector<tokens> all;
        std::vector<kv::matrix> want;
        std::vector<kv::prefill_result<quantized_cache>> users;
        for (unsigned i = 0; i < 4; ++i) {
            all.push_back(some_tokens(random_model(), 80 + 7 * i, 50 + i));
            want.push_back(cold(codec, 32, all[i]));
            users.push_back(here.prefill({all[i].begin(), all[i].begin() + 20 + 9 * i}));
        }
        std::vector<tokens> rest;
        std::vector<kv::batch_entry<quantized_cache>> batch;
        for (unsigned i = 0; i < 4; ++i)
            rest.emplace_back(all[i].begin() + 20 + 9 * i, all[i].begin() + 60);
        for (unsigned i = 0; i < 4; ++i)
            batch.push_back({&users[i].sequence, rest[i], kv::logits_mode::all});
        kv::matrix rows;
        REQUIRE(here.pipeline.extend(batch, rows).has_value());
        Eigen::Index at = 0;
        for (unsigned i = 0; i < 4; ++i) {
            const auto n = static_cast<Eigen::Index>(rest[i].size());
            CHECK(same_bits(rows.middleRows(at, n), first_rows(want[i], 60)));
            at += n;
        }
        for (unsigned i = 0; i < 4; ++i)
            for (std::size_t n = 60; n < all[i].size(); ++n) {
                const tokens next(all[i].begin(), all[i].begin() + static_cast<std::ptrdiff_t>(n + 1));
                CHECK(same_bits(here.go_on(users[i].sequence, next), first_rows(want[i], n + 1)));
            }
    }
}

TEST_CASE("quantized pages that were evicted and recomputed have the same bits, and a shortage of memory is an error") {
    for (const char* codec : {"int8", "int4", "keep_recent<int8>"}) {
        CAPTURE(codec);
        quantized_host here(*any::named(codec), 32, 1, 32, 64); // part of it for residual rows
        for (int round = 0; round < 2; ++round)
            for (unsigned i = 0; i < 6; ++i) {
                const tokens prompt = some_tokens(random_model(), 200 + 13 * i, 70 + i);
                CHECK(same_bits(here.prefill(prompt).logits, cold(codec, 32, prompt)));
                CHECK(here.store.check().has_value());
            }
        const auto refused = here.pipeline.prefill(some_tokens(random_model(), 2100, 9));
        REQUIRE_FALSE(refused.has_value());
        CHECK(refused.error().code == kv::error_code::out_of_memory);
        CHECK(here.store.check().has_value());
    }
}

TEST_CASE("exact rows are given back with the pages that are full") {
    quantized_host here("int4", 32);
    const auto filled = here.prefill(some_tokens(random_model(), 64, 1));
    CHECK(here.store.stats().residual_pages == 0);
    {
        const auto open = here.prefill(some_tokens(random_model(), 65, 2));
        CHECK(here.store.stats().residual_pages == 1);
        const auto fork = open.sequence.fork(65);
        CHECK(here.store.stats().residual_pages == 1);
    }
    CHECK(here.store.stats().residual_pages == 0);
}
