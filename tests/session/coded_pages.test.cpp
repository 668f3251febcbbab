// SPDX-License-Identifier: MIT
// Promise 1 where the codec codes whole pages: for each page size the bits of a cold run, whatever was reused.
#include <kvcache/cache/any_codec.hpp>

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

// What the list lacks: other sizes, and wrappers of wrappers.
using more_codecs =
    std::tuple<kv::bf16, kv::f16, kv::int8, kv::int8_grouped, kv::int4, kv::int4_channels, kv::rotated<kv::int4>,
               kv::codebook<4>, kv::codebook<3>, kv::codebook<2>, kv::split<kv::int4_channels, kv::int4>,
               kv::split<kv::rotated<kv::int8>, kv::codebook<3>>,
               kv::split<kv::rotated<kv::int4_channels>, kv::rotated<kv::int4>>, kv::sinks_exact<kv::int4>,
               kv::recent_exact<kv::int8>, kv::recent_exact<kv::sinks_exact<kv::rotated<kv::int4>>>>;
using any = kv::any_codec<more_codecs>;
using coded_cache = kv::cache<any>;

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

struct coded_host {
    coded_host(const std::string& codec, std::uint32_t page, std::size_t threads = 1, std::size_t split = 64,
               std::size_t pages = 600)
        : coded_host(*any::named(codec), page, threads, split, pages) {}
    coded_host(const any& codec, std::uint32_t page, std::size_t threads, std::size_t split, std::size_t pages)
        : team(threads),
          store(kv::make_cache(random_model().shape(page),
                               {.bytes = pages * codec.open(random_model().shape(page)).page_bytes()}, codec)),
          through(store, random_model(), team, split) {}
    ~coded_host() {
        const auto sound = store.check();
        CHECK((sound ? std::string() : sound.error().message) == "");
    }

    [[nodiscard]] kv::fed<coded_cache> feed(const tokens& prompt) {
        auto done = through.feed(prompt, kv::logits_of::all);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    // Runs what of `all` is behind the sequence's tokens.
    [[nodiscard]] kv::matrix go_on(coded_cache::sequence& sequence, const tokens& all) {
        const tokens more(all.begin() + static_cast<std::ptrdiff_t>(sequence.size()), all.end());
        auto rows = through.extend(sequence, more, kv::logits_of::all);
        REQUIRE(rows.has_value());
        return std::move(*rows);
    }

    kv::team team;
    coded_cache store;
    kv::pipeline<coded_cache, kv::transformer> through;
};

kv::matrix cold(const std::string& codec, std::uint32_t page, const tokens& prompt) {
    coded_host fresh(codec, page);
    return fresh.feed(prompt).logits;
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
                coded_host here(codec, page, 1 + split % 2, split);
                CHECK(same_bits(here.feed({prompt.begin(), prompt.begin() + 75}).logits, first_rows(want, 75)));
                const auto part = here.feed(prompt);
                CHECK(part.reused % page == 0);
                CHECK(part.reused + part.prefilled == prompt.size());
                CHECK(same_bits(part.logits, want));
                const auto warm = here.feed(prompt);
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
        coded_host here(codec, 32);
        auto whole = here.feed({prompt.begin(), prompt.begin() + 90});
        for (const std::size_t at : {0u, 1u, 31u, 32u, 33u, 63u, 64u, 65u, 89u, 90u}) {
            CAPTURE(at);
            auto branch = whole.sequence.fork(at);
            CHECK(branch.size() <= at);
            CHECK(same_bits(here.go_on(branch, prompt), want));
            branch.truncate(at);
            CHECK(same_bits(here.go_on(branch, prompt), want));
            CHECK(here.store.check().has_value());
        }
        // Drafts of which some tokens are right: rows that were written, read and given back.
        auto drafting = here.feed({prompt.begin(), prompt.begin() + 50});
        for (std::size_t n = 50; n < 98; n += 3) {
            tokens draft(prompt.begin() + static_cast<std::ptrdiff_t>(n),
                         prompt.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(n + 2, 100)));
            draft.insert(draft.end(), wrong.begin(), wrong.begin() + 16);
            REQUIRE(here.through.extend(drafting.sequence, draft).has_value());
            drafting.sequence.truncate(n + 2);
            const tokens next(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(n + 3));
            CHECK(same_bits(here.go_on(drafting.sequence, next), first_rows(want, n + 3)));
        }
    }
}

TEST_CASE("token by token, and in a batch with strangers, coded pages give the bits of a long run") {
    for (const std::string& codec : names()) {
        CAPTURE(codec);
        coded_host here(codec, 32, 2, 48);
        std::vector<tokens> all;
        std::vector<kv::matrix> want;
        std::vector<kv::fed<coded_cache>> users;
        for (unsigned i = 0; i < 4; ++i) {
            all.push_back(some_tokens(random_model(), 80 + 7 * i, 50 + i));
            want.push_back(cold(codec, 32, all[i]));
            users.push_back(here.feed({all[i].begin(), all[i].begin() + 20 + 9 * i}));
        }
        std::vector<tokens> rest;
        std::vector<kv::extension<coded_cache>> batch;
        for (unsigned i = 0; i < 4; ++i)
            rest.emplace_back(all[i].begin() + 20 + 9 * i, all[i].begin() + 60);
        for (unsigned i = 0; i < 4; ++i)
            batch.push_back({&users[i].sequence, rest[i], kv::logits_of::all});
        const auto rows = here.through.extend(batch);
        REQUIRE(rows.has_value());
        Eigen::Index at = 0;
        for (unsigned i = 0; i < 4; ++i) {
            const auto n = static_cast<Eigen::Index>(rest[i].size());
            CHECK(same_bits(rows->middleRows(at, n), first_rows(want[i], 60)));
            at += n;
        }
        for (unsigned i = 0; i < 4; ++i)
            for (std::size_t n = 60; n < all[i].size(); ++n) {
                const tokens next(all[i].begin(), all[i].begin() + static_cast<std::ptrdiff_t>(n + 1));
                CHECK(same_bits(here.go_on(users[i].sequence, next), first_rows(want[i], n + 1)));
            }
    }
}

TEST_CASE("coded pages that were evicted and computed again have the same bits, and memory that is short is said") {
    for (const char* codec : {"int8", "int4", "recent_exact<int8>"}) {
        CAPTURE(codec);
        coded_host here(*any::named(codec), 32, 1, 32, 64); // some of it for exact rows
        for (int round = 0; round < 2; ++round)
            for (unsigned i = 0; i < 6; ++i) {
                const tokens prompt = some_tokens(random_model(), 200 + 13 * i, 70 + i);
                CHECK(same_bits(here.feed(prompt).logits, cold(codec, 32, prompt)));
                CHECK(here.store.check().has_value());
            }
        const auto refused = here.through.feed(some_tokens(random_model(), 2100, 9));
        REQUIRE_FALSE(refused.has_value());
        CHECK(refused.error().code == kv::error_code::out_of_memory);
        CHECK(here.store.check().has_value());
    }
}

TEST_CASE("exact rows are given back with the pages that are full") {
    coded_host here("int4", 32);
    const auto fed = here.feed(some_tokens(random_model(), 64, 1));
    CHECK(here.store.stats().exact == 0);
    {
        const auto open = here.feed(some_tokens(random_model(), 65, 2));
        CHECK(here.store.stats().exact == 1);
        const auto fork = open.sequence.fork(65);
        CHECK(here.store.stats().exact == 1);
    }
    CHECK(here.store.stats().exact == 0);
}
