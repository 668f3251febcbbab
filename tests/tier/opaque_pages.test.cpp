// SPDX-License-Identifier: MIT
#include <kvcache/cache.hpp>
#include <kvcache/cache/blobs.hpp>
#include <kvcache/codec/opaque.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/lmdb.hpp>
#include <kvcache/tier/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using bytes = std::vector<std::byte>;
constexpr std::uint32_t page_tokens = 8;
constexpr std::size_t most_bytes = 200;
constexpr kv::page_shape shape{1, 1, 1, page_tokens};

/// What an engine would serialise for the page that these tokens end, for a group of its layers: other bytes, and
/// another number of them, for each prefix.
bytes blob_after(std::span<const kv::token_id> prefix, std::size_t group = 0) {
    std::uint32_t name = 2166136261u + static_cast<std::uint32_t>(group);
    for (const kv::token_id token : prefix)
        name = (name ^ static_cast<std::uint32_t>(kv::index_of(token))) * 16777619u;
    std::minstd_rand dice(name);
    bytes made(1 + dice() % most_bytes);
    for (std::byte& one : made)
        one = static_cast<std::byte>(dice() & 0xff);
    return made;
}

bool is_blob(std::span<const std::byte> found, std::span<const kv::token_id> prefix, std::size_t group = 0) {
    const bytes right = blob_after(prefix, group);
    return std::equal(found.begin(), found.end(), right.begin(), right.end());
}

/// The end of a page of a sequence of so many tokens.
std::size_t end_of(std::size_t page, std::size_t count) {
    return std::min((page + 1) * page_tokens, count);
}

/// A prompt of few words, so that prompts share prefixes.
tokens random_prompt(std::minstd_rand& dice, std::size_t most) {
    tokens made(1 + dice() % most);
    for (kv::token_id& token : made)
        token = kv::token_id(dice() % 16 == 0 ? dice() % 3 : 1);
    return made;
}

/// Reads what a cache knows of a prompt, and writes the rest. Returns the tokens that were known, or nullopt if there
/// was no room.
template <class Cache>
std::optional<std::size_t> use(Cache& cache, std::span<const kv::token_id> prompt, const kv::tenant& of = {}) {
    auto sequence = cache.open(prompt, of);
    const std::size_t known = sequence.size();
    REQUIRE(sequence.table().size() == (known + page_tokens - 1) / page_tokens);
    for (std::size_t page = 0; page < sequence.table().size(); ++page)
        REQUIRE(is_blob(kv::blob_of(cache, sequence, page), prompt.first(end_of(page, known))));
    auto lease = cache.reserve(sequence, prompt.size() - known);
    if (!lease) {
        REQUIRE(lease.error().code == kv::error_code::out_of_memory);
        return std::nullopt;
    }
    const std::size_t first = known / page_tokens;
    for (std::size_t page = first; page * page_tokens < prompt.size(); ++page) {
        const bytes made = blob_after(prompt.first(end_of(page, prompt.size())));
        const auto to = kv::blob_for(*lease, page - first, made.size());
        std::copy(made.begin(), made.end(), to.begin());
    }
    if (prompt.size() % 7 == 0) { // an engine that fails
        lease->rollback();
        REQUIRE(sequence.size() == known);
        for (std::size_t page = 0; page < sequence.table().size(); ++page)
            REQUIRE(is_blob(kv::blob_of(cache, sequence, page), prompt.first(end_of(page, known))));
        return known;
    }
    lease->commit(prompt.subspan(known));
    return known;
}

const kv::codec::opaque codec{.blob_bytes = most_bytes, .layout = "numbers of a test"};
constexpr std::size_t page_bytes = kv::codec::opaque::page_bytes(most_bytes);

/// Prompts, evictions and tenants at random. Returns the tokens that were known.
template <class Cache>
std::size_t play(Cache& cache, unsigned rounds, std::span<const kv::tenant> tenants) {
    INFO("seed " << rounds);
    std::minstd_rand dice(rounds);
    std::size_t known = 0;
    for (unsigned round = 0; round < rounds; ++round) {
        const auto& of = tenants[dice() % tenants.size()];
        const tokens prompt = random_prompt(dice, 100);
        if (dice() % 8 == 0)
            cache.evict(prompt, of);
        known += use(cache, prompt, of).value_or(0);
        if (round % 16 == 0)
            REQUIRE(cache.check());
    }
    REQUIRE(cache.check());
    return known;
}

} // namespace

TEST_CASE("opaque pages are found as they were written, under every eviction policy") {
    const auto plays = [](auto eviction) {
        auto cache = kv::make_cache({shape, {.bytes = 20 * page_bytes}}, codec, eviction);
        CHECK(play(cache, 500, std::vector<kv::tenant>{{}}) > 0);
    };
    std::apply([&](const auto&... policies) { (plays(policies), ...); }, kv::eviction_policies{});
}

TEST_CASE("opaque pages of tenants are apart") {
    auto cache = kv::make_cache({.shape = shape, .limit = {.bytes = 60 * page_bytes}, .tenants = 2}, codec);
    const std::vector<kv::tenant> both = {*cache.open_tenant(kv::tenant_salt("a"), 20),
                                          *cache.open_tenant(kv::tenant_salt("b"), 40)};
    CHECK(play(cache, 500, both) > 0);
    const tokens own(40, kv::token_id{9});
    CHECK(use(cache, own, both[0]) == 0);
    CHECK(use(cache, own, both[0]) == 32); // the last token is computed
    CHECK(use(cache, own, both[1]) == 0);
}

TEST_CASE("opaque pages come back from tiers with the bytes they had") {
    const testing_files::temporary_directory directory;
    const auto plays = [](auto tier) {
        auto cache =
            kv::make_cache({.shape = shape, .limit = {.bytes = 16 * page_bytes}, .id = {.config = "a model of a test"}},
                           codec, std::move(tier));
        play(cache, 300, std::vector<kv::tenant>{{}});
        const tokens prompt(50, kv::token_id{9});
        REQUIRE(use(cache, prompt) == 0);
        REQUIRE(cache.tier().flush());
        cache.clear_all();
        CHECK(use(cache, prompt) == 48);
        const auto now = kv::tier_stats_of(cache);
        CHECK(now.refused == 0);
        CHECK(now.loaded_tokens >= 48);
        cache.clear_all();
        play(cache, 300, std::vector<kv::tenant>{{}});
        CHECK(kv::tier_stats_of(cache).refused == 0);
    };
    plays(kv::tier::memory<>{.bytes = 1 << 20});
    plays(kv::tier::lmdb<>{.directory = directory.path()});
}

TEST_CASE("an opaque page is continued where its blob ends, and nowhere else") {
    auto cache = kv::make_cache({shape, {.bytes = 20 * page_bytes}}, codec);
    const tokens prompt(20, kv::token_id{3});
    REQUIRE(use(cache, prompt) == 0);
    tokens other = prompt;
    other.resize(30, kv::token_id{4});
    CHECK(cache.lookup(other).cached_tokens == 20);
    CHECK(cache.open(other).size() == 20);
    CHECK(cache.open(prompt).size() == 16); // not the last token, with which the blob ends
    other[18] = kv::token_id{4};
    CHECK(cache.lookup(other).cached_tokens == 16);
    CHECK(cache.lookup(other).common_prefix == 18);
    auto sequence = cache.open(other);
    CHECK(sequence.size() == 16);
    CHECK(sequence.fork(13).size() == 8);
    sequence.truncate(9);
    CHECK(sequence.size() == 8);
    CHECK(cache.check());
}

TEST_CASE("an opaque page is committed with its blob") {
    auto cache = kv::make_cache({shape, {.bytes = 20 * page_bytes}}, codec);
    auto sequence = cache.open();
    const tokens some(12, kv::token_id{1});
    const auto commit = [&](std::size_t blobs, std::size_t count) {
        auto lease = cache.reserve(sequence, some.size());
        REQUIRE(lease);
        for (std::size_t page = 0; page < blobs; ++page)
            static_cast<void>(kv::blob_for(*lease, page, 5));
        lease->commit(std::span(some).first(count));
    };
    CHECK_THROWS_AS(commit(1, 12), kv::contract_violation); // a blob is missing
    CHECK_THROWS_AS(commit(2, 11), kv::contract_violation); // the last one holds 12
    {
        auto lease = cache.reserve(sequence, some.size());
        REQUIRE(lease);
        CHECK_THROWS_AS(kv::blob_for(*lease, 0, most_bytes + 1), kv::contract_violation);
    }
    commit(1, 8);
    CHECK(sequence.size() == 8);
    CHECK(cache.check());
}

TEST_CASE("a record whose blob claims other bytes than it has is refused") {
    const kv::record_names names({.config = "a model of a test"}, "");
    const kv::record_authenticator auth("");
    const tokens some(page_tokens, kv::token_id{1});
    const auto name = names.chain(names.root(), some);
    std::vector<std::byte> page(page_bytes, std::byte{0x5a}); // what a page held before
    const auto place = [&](std::size_t claimed, std::size_t given) {
        bytes part(given);
        for (std::size_t i = 0; i < std::min<std::size_t>(given, 8); ++i)
            part[i] = static_cast<std::byte>(claimed >> 8 * i & 0xff);
        const kv::part_source source{kv::part_kind::page, 0, page_tokens, part};
        const kv::record_writer made({kv::record_kind::page, 0, some, names.root(), name, {&source, 1}}, names, auth);
        bytes record;
        for (const auto& piece : made.pieces())
            record.insert(record.end(), piece.begin(), piece.end());
        const auto read = kv::record::parse(record, auth);
        REQUIRE(read);
        return kv::place_blob(codec.open(shape), *read, source, page, auth);
    };
    CHECK(place(10, 18));
    for (const auto& [claimed, given] : {std::pair<std::size_t, std::size_t>{11, 18},
                                         {9, 18},
                                         {most_bytes + 1, 18},
                                         {~std::size_t{0}, 18},
                                         {0, 4},
                                         {0, 0}}) {
        INFO(claimed << " claimed, " << given << " given");
        const auto refused = place(claimed, given);
        CHECK(!refused);
        CHECK(codec.open(shape).blob(page).size() <= most_bytes);
    }
    CHECK(!place(most_bytes + 10, most_bytes + 18)); // more than a page
}

TEST_CASE("blobs of windows and states are found where a prompt continues") {
    constexpr std::uint32_t window = 20;
    constexpr std::size_t full_group = 0, window_group = 1, state_group = 2;
    const kv::layers::grouped groups{.layout = {page_tokens,
                                                {{.layers = 2, .kv_heads = 1, .head_dim = 1},
                                                 {.layers = 2, .kv_heads = 1, .head_dim = 1, .window = window},
                                                 {.layers = 2, .opaque = true}}},
                                     .block_bytes = {0, page_bytes}};
    const testing_files::temporary_directory directory;
    auto cache = kv::make_cache({.limit = {.bytes = 60 * page_bytes}, .id = {.config = "a model of a test"}}, codec,
                                groups, kv::tier::lmdb<>{.directory = directory.path()});
    std::minstd_rand dice(7);
    std::size_t known = 0;
    for (unsigned round = 0; round < 400; ++round) {
        const tokens prompt = random_prompt(dice, 100);
        auto sequence = cache.open(prompt);
        const std::size_t first = sequence.size();
        const auto after = [&](std::size_t page, std::size_t count) {
            return std::span(prompt).first(end_of(page, count));
        };
        for (std::size_t page = 0; page < sequence.table().size(); ++page) {
            REQUIRE(is_blob(kv::blob_of(cache, sequence, page, full_group), after(page, first)));
            if ((page + 1) * page_tokens + window > first + 1)
                REQUIRE(is_blob(kv::blob_of(cache, sequence, page, window_group), after(page, first), window_group));
        }
        REQUIRE(first % page_tokens == 0); // where a state may be
        if (first > 0)
            REQUIRE(is_blob(sequence.state_of(state_group), after(first / page_tokens - 1, first), state_group));
        known += first;
        const std::size_t end = round % 3 == 0 ? prompt.size() : prompt.size() / page_tokens * page_tokens;
        if (end <= first)
            continue;
        auto lease = cache.reserve(sequence, end - first, {.whole = round % 2 == 0});
        if (!lease)
            continue;
        const auto has = lease->blocks(window_group);
        for (std::size_t page = first / page_tokens; page * page_tokens < end; ++page)
            for (const std::size_t group : {full_group, window_group}) {
                if (group == window_group && has[page] < 0)
                    continue;
                const bytes made = blob_after(after(page, end), group);
                const auto to = kv::blob_for(*lease, page - first / page_tokens, made.size(), group);
                std::copy(made.begin(), made.end(), to.begin());
            }
        if (end % page_tokens == 0) {
            const bytes made = blob_after(std::span(prompt).first(end), state_group);
            if (const auto block = lease->snapshot(state_group, end, made.size()))
                std::copy(made.begin(), made.end(), lease->state_of(state_group, *block).begin());
        }
        lease->commit(std::span(prompt).subspan(first, lease->rows()));
        if (round % 50 == 49) {
            REQUIRE(cache.tier().flush());
            cache.clear_all();
        }
        REQUIRE(cache.check());
    }
    CHECK(known > 0);
    CHECK(kv::tier_stats_of(cache).loaded_tokens > 0);
    CHECK(kv::tier_stats_of(cache).refused == 0);
}
