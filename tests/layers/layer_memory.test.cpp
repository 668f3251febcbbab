// SPDX-License-Identifier: MIT
// What conversations of a model with sliding windows hold, to the byte: Gemma 3 270M, 18 layers of 1 KV head of 256, of
// which 3 attend to all tokens and 15 to the last 512.
#include <kvcache/layer_groups.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "layers/group_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr std::size_t page = 64, full_group = 0, window_group = 1;

[[nodiscard]] kv::cache_layout gemma() {
    return {
        page,
        {{.layers = 3, .kv_heads = 1, .head_dim = 256}, {.layers = 15, .kv_heads = 1, .head_dim = 256, .window = 512}}};
}

// Bytes of so many tokens in a layer, keys and values of 16-bit numbers.
constexpr std::size_t row_bytes = 2 * 256 * 2;
[[nodiscard]] constexpr std::size_t up(std::size_t tokens) {
    return (tokens + page - 1) / page * page;
}
// The first token that the next query reads.
[[nodiscard]] constexpr std::size_t begins(std::size_t tokens) {
    return tokens < 512 ? 0 : tokens - 511;
}
// Whole pages of what the next query reads.
[[nodiscard]] constexpr std::size_t needed(std::size_t tokens) {
    return row_bytes * (3 * up(tokens) + 15 * (up(tokens) - begins(tokens) / page * page));
}
// 3 layers in full, and 15 layers of the window and one page.
[[nodiscard]] constexpr std::size_t wanted(std::size_t tokens) {
    return row_bytes * (3 * up(tokens) + 15 * std::min(up(tokens), 512 + page));
}

using gemma_cache = kv::cache<kv::storage::external, kv::layers::grouped, kv::eviction::lru>;

struct fixture {
    group_host host{gemma()};
    gemma_cache cache;

    explicit fixture(std::size_t bytes = std::size_t{1} << 30, bool merges = true, bool keeps = true)
        : cache(kv::make_cache({.limit = {.bytes = bytes}, .merge_equal_pages = merges}, pages_of(host, full_group),
                               groups_of(host, keeps), kv::eviction::lru{})) {}

    [[nodiscard]] std::vector<std::size_t> in_use() const {
        std::vector<std::size_t> made;
        for (const kv::layer_group_stats& of : cache.group_stats())
            made.push_back(of.in_use);
        return made;
    }
    // Bytes of the blocks that sequences use.
    [[nodiscard]] std::size_t held() const {
        std::size_t bytes = 0;
        for (const kv::layer_group_stats& of : cache.group_stats())
            bytes += of.in_use * of.block_bytes;
        return bytes;
    }

    // Computes the rest of a sequence's tokens in batches. Returns the most bytes held at a time; nullopt if there was
    // no room.
    std::optional<std::size_t> prefill(gemma_cache::sequence& sequence, const past& all, std::size_t batch) {
        std::size_t most = 0;
        while (sequence.size() < all.size()) {
            const std::size_t first = sequence.size(), count = std::min(batch, all.size() - first);
            auto lease = cache.reserve(sequence, count);
            if (!lease)
                return std::nullopt;
            write_groups(host, *lease, all.first(first + count));
            most = std::max(most, held());
            lease->commit(std::span(all.tokens).subspan(first, count));
        }
        return most;
    }
};

// The first `kept` tokens of a conversation, and others of one's own.
[[nodiscard]] past tailed(const past& of, std::size_t kept, std::size_t more, std::int32_t with) {
    past made = of.first(kept);
    for (std::size_t i = 0; i < more; ++i)
        made.push(kv::token_id{with + static_cast<std::int32_t>(i)});
    return made;
}
[[nodiscard]] past conversation(std::size_t tokens) {
    return tailed({}, 0, tokens, 0);
}

// Blocks of the two groups that conversations use which share the first `shared` tokens of the first one, and are as
// long as these: an entry that lies in the shared tokens counts once, and every other one for itself.
[[nodiscard]] std::vector<std::size_t> blocks_of(std::span<const std::size_t> lengths, std::size_t shared) {
    std::vector<std::size_t> made(2);
    for (std::size_t group = 0; group < 2; ++group) {
        std::vector<char> counted(shared / page, 0);
        for (const std::size_t length : lengths)
            for (std::size_t entry = group == full_group ? 0 : begins(length) / page; entry * page < length; ++entry)
                if (entry >= counted.size() || std::exchange(counted[entry], 1) == 0)
                    ++made[group];
    }
    return made;
}

} // namespace

TEST_CASE("a conversation holds its full layers, and of the others a window and at most a page") {
    const past all = conversation(8192);
    for (const bool keeps : {true, false})
        for (const std::size_t batch : {64u, 100u, 512u, 2048u, 8192u}) {
            INFO("batches of " << batch << ", released blocks " << (keeps ? "kept" : "freed"));
            fixture one(std::size_t{1} << 30, true, keeps);
            auto sequence = one.cache.open();
            for (std::size_t n = 0; n < all.size();) {
                n = std::min(n + batch, all.size());
                const auto most = one.prefill(sequence, all.first(n), batch);
                REQUIRE(most.has_value());
                const std::size_t held = one.held();
                if (held != needed(n) || 100 * held > 105 * wanted(n))
                    FAIL(held << " bytes are held of " << n << " tokens, not " << needed(n));
                // A batch adds no more than its own rows.
                CHECK(*most <= needed(n - std::min(n, batch)) + 18 * row_bytes * (up(batch) + page));
                if (!keeps)
                    REQUIRE(one.cache.core().pages().blocks().used() == held);
            }
            CHECK(one.in_use() == std::vector<std::size_t>{128, 8});
            CHECK(one.held() == row_bytes * (3 * 8192 + 15 * 512));
            CHECK(one.held() == gemma().bytes(8192, 2)); // 31.5 MiB, as the layout says
            read_groups(one.host, one.cache, sequence, all, true);
            CHECK(one.cache.check().has_value());
        }
}

TEST_CASE("generated token by token a conversation holds no more than prefilled") {
    fixture one;
    past all = conversation(2000);
    auto sequence = one.cache.open();
    REQUIRE(one.prefill(sequence, all, 512).has_value());
    for (int i = 0; i < 700; ++i) {
        all.push(kv::token_id{-1 - i});
        REQUIRE(one.prefill(sequence, all, 1).has_value());
        if (one.held() != needed(all.size()) || 100 * one.held() > 105 * wanted(all.size()))
            FAIL(one.held() << " bytes are held of " << all.size() << " tokens");
    }
    read_groups(one.host, one.cache, sequence, all, true);
}

TEST_CASE("a cache with a limit of a twentieth more than the full layers and the windows holds the conversation") {
    const past all = conversation(8192);
    for (const bool keeps : {true, false}) {
        fixture one(wanted(8192) * 105 / 100, true, keeps);
        auto sequence = one.cache.open();
        const auto most = one.prefill(sequence, all, page);
        REQUIRE(most.has_value());
        CHECK(100 * *most <= 105 * wanted(8192)); // while it computes, too
        CHECK(one.cache.core().pages().blocks().used() <= wanted(8192) * 105 / 100);
        read_groups(one.host, one.cache, sequence, all, true);
        CHECK(one.cache.check().has_value());
    }
}

TEST_CASE("64 conversations that share 8,192 tokens hold them once, and their own tails") {
    for (const std::size_t shared : {std::size_t{8192}, std::size_t{8192 + 24}}) // to a page's end, and into a page
        for (const std::size_t tail : {1u, 40u, 100u, 511u, 700u}) {
            INFO(shared << " tokens and tails of " << tail);
            fixture many;
            const past system = conversation(shared);
            std::vector<gemma_cache::sequence> all;
            std::vector<past> tokens{system};
            std::vector<std::size_t> lengths{shared};
            all.push_back(many.cache.open());
            REQUIRE(many.prefill(all.front(), system, 512).has_value());
            for (std::int32_t i = 0; i < 64; ++i) {
                tokens.push_back(tailed(system, shared, tail, 100000 + 1000 * i));
                if (i % 2 == 0) {
                    all.push_back(many.cache.open(tokens.back().tokens));
                    REQUIRE(all.back().size() == shared);
                } else {
                    all.push_back(all.front().fork(shared));
                }
                // No block for its tail yet; the page in which they part can be another one's copy.
                const auto before = many.in_use(), known = blocks_of(lengths, shared);
                REQUIRE(before[full_group] == known[full_group]);
                REQUIRE(before[window_group] - known[window_group] <= (shared % page > 0 ? 1 : 0));
                REQUIRE(many.prefill(all.back(), tokens.back(), 64).has_value());
                lengths.push_back(tokens.back().size());
                REQUIRE(many.in_use() == blocks_of(lengths, shared)); // of both groups the same: once, and its tail
            }
            for (std::size_t i = 0; i < all.size(); ++i)
                read_groups(many.host, many.cache, all[i], tokens[i], true);
            REQUIRE(many.cache.check().has_value());
            all.clear();
            CHECK(many.held() == 0);
        }
}

TEST_CASE("conversations that compute the same prompt at once hold it once, where pages are merged") {
    const past all = conversation(2048);
    fixture many;
    std::vector<gemma_cache::sequence> each;
    for (int i = 0; i < 4; ++i)
        each.push_back(many.cache.open());
    for (std::size_t n = 100; n <= 2000; n += 100) {
        std::vector<gemma_cache::lease> leases;
        for (auto& one : each) {
            auto lease = many.cache.reserve(one, 100);
            REQUIRE(lease.has_value());
            write_groups(many.host, *lease, all.first(n));
            leases.push_back(std::move(*lease));
        }
        for (auto& lease : leases)
            lease.commit(std::span(all.tokens).subspan(n - 100, 100));
        const std::size_t open = n % page == 0 ? 0 : 3; // the last page of each, until it is full
        CHECK(many.held() == needed(n) + open * 18 * row_bytes * page);
    }
    for (const auto& one : each)
        read_groups(many.host, many.cache, one, all.first(2000), true);
    CHECK(many.cache.check().has_value());
}

TEST_CASE("where memory is short, an edit after three windows finds the window where its turn began") {
    // Of its 4,000 tokens a conversation keeps all in 15 layers too, unless they are evicted: 72 MB. Prompts that never
    // come again take the rest, and their windows leave first.
    constexpr std::size_t turns = 10, said = 400, edited = 60;
    fixture one(std::size_t{160} << 20);
    std::int32_t unheard = 0;
    const auto others = [&](const past& before, std::size_t count) {
        unheard += static_cast<std::int32_t>(count);
        return tailed(before, before.size(), count, unheard);
    };
    for (int conversation = 0; conversation < 4; ++conversation) {
        past all;
        for (std::size_t turn = 0; turn < turns; ++turn) {
            all = others(all, said);
            {
                auto next = one.cache.open(all.tokens);
                CHECK(next.size() == turn * said);
                REQUIRE(one.prefill(next, all, 512).has_value());
            }
            const past cold = others({}, said * (turn + 1));
            auto next = one.cache.open(cold.tokens);
            REQUIRE(one.prefill(next, cold, 512).has_value());
        }
        for (std::size_t turn = turns - 1; turn * said > 3 * 512; --turn) {
            const past prompt = others(all.first(turn * said), edited);
            INFO("conversation " << conversation << ", edited after turn " << turn);
            CHECK(one.cache.lookup(prompt.tokens).cached_tokens >= turn * said / page * page);
        }
        CHECK(one.cache.check().has_value());
    }
    CHECK(one.cache.core().pages().blocks().used() > (std::size_t{159} << 20)); // it is full
}
