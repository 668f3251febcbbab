// SPDX-License-Identifier: MIT
#include <kvcache/attention/batch_attention.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/pages.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using codec = kv::codec::f32::state;
using batch = kv::batch_attention<codec, kv::storage::heap::state>;

// A heap storage of pages with random keys and values in all rows.
struct pool {
    kv::rope rotation;
    kv::attention_shape shape;
    codec made;
    kv::storage::heap::state storage;
    std::uint32_t tokens;
    std::uint32_t used = 0;

    pool(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t dim, std::uint32_t page_tokens, std::size_t pages)
        : rotation(kv::rope::standard_frequencies(dim, 10000.0)),
          shape{heads, kv_heads, dim, 0.25f, &rotation},
          made(kv::codec::f32{}.open({1, kv_heads, dim, page_tokens})),
          storage(kv::storage::heap{}.open(pages, made.page_bytes())),
          tokens(page_tokens) {}
    pool(const pool&) = delete;

    [[nodiscard]] kv::page_source<codec, kv::storage::heap::state> source() const { return {made, storage}; }

    [[nodiscard]] kv::page_entry page(std::uint32_t count, std::uint32_t first = 0, std::int64_t base = 0) {
        const auto id = static_cast<kv::page_id>(used++);
        REQUIRE(storage.acquire(id));
        for (std::uint32_t row = 0; row < tokens; ++row)
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
                const std::uint64_t seed = (std::uint64_t{used} * tokens + row) * shape.kv_heads + head;
                made.encode(storage.bytes(id), {kv::layer_id{0}, kv::head_id{head}, row},
                            numbers::uniforms(2 * seed, shape.head_dim, 2.0f),
                            numbers::uniforms(2 * seed + 1, shape.head_dim));
            }
        return {.page = id, .base = base, .first = first, .count = count};
    }
};

// Query rows of a page table, with memory for their output.
struct asking {
    std::vector<kv::page_entry> table;
    std::size_t position, rows;
    std::vector<float> queries, rotations, out;
    bool spliced = false;

    asking(const pool& of, std::vector<kv::page_entry> pages, std::size_t at, std::size_t count, std::uint64_t seed)
        : table(std::move(pages)), position(at), rows(count) {
        const std::size_t width = std::size_t{of.shape.heads} * of.shape.head_dim;
        queries = numbers::uniforms(seed, rows * width, 4.0f);
        rotations.resize(rows * of.shape.head_dim);
        for (std::size_t row = 0; row < rows; ++row)
            of.rotation.fill(static_cast<std::int64_t>(position + row),
                             std::span(rotations).subspan(row * of.shape.head_dim, of.shape.head_dim));
        out.assign(rows * width, numbers::not_a_number);
    }

    [[nodiscard]] kv::attention_part of(const pool& in) {
        const std::size_t width = std::size_t{in.shape.heads} * in.shape.head_dim;
        return {{.table = table, .residual = {}, .spliced = spliced},
                {queries.data(), rotations.data(), out.data(), width, width, position, rows}};
    }

    // Output of the rows computed one by one, outside a batch.
    [[nodiscard]] std::vector<float> alone(const pool& in) const {
        std::vector<float> got(out.size());
        asking copy = *this;
        kv::attention_part asked = copy.of(in);
        asked.queries.out = got.data();
        for (std::uint32_t head = 0; head < in.shape.kv_heads; ++head)
            for (std::size_t row = 0; row < rows; ++row)
                kv::paged_attention(in.shape, in.source(),
                                    {asked.pages, pages::rows_between(asked.queries, row, row + 1, in.shape.head_dim)},
                                    kv::layer_id{0}, kv::head_id{head});
        return got;
    }
};

// Checks that a batch gives every row the same bits as alone, for each number of threads, with one object that plans
// again: without a window, with a short one, and with one that begins before a split.
void check(pool& in, std::vector<asking>& all) {
    static std::array<kv::thread_pool, 3> thread_pools{kv::thread_pool(1), kv::thread_pool(2), kv::thread_pool(3)};
    batch attention;
    std::vector<kv::attention_part> parts;
    std::size_t longest = 0;
    for (auto& one : all) {
        parts.push_back(one.of(in));
        longest = std::max(longest, one.position + one.rows);
    }
    for (const std::uint32_t window : {0u, 20u, 1500u}) {
        if (window >= longest)
            continue;
        in.shape.window = window;
        for (kv::thread_pool& threads : thread_pools) {
            for (auto& one : all)
                std::ranges::fill(one.out, numbers::not_a_number);
            attention.plan(in.shape, in.source(), parts, threads);
            attention.run(kv::layer_id{0}, threads);
            for (const auto& one : all) {
                INFO(all.size() << " sequences, " << one.rows << " rows at " << one.position << ", "
                                << threads.threads() << " threads, window " << window);
                REQUIRE(numbers::same_bits(one.out, one.alone(in)));
            }
        }
    }
    in.shape.window = 0;
}

std::vector<kv::page_entry> joined(std::vector<kv::page_entry> a, const std::vector<kv::page_entry>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

} // namespace

TEST_CASE("sequences that share pages have the bits they have alone, for every fork, length and number of them") {
    for (const std::uint32_t group : {1u, 3u, 4u})
        for (std::size_t shared = 0; shared <= 3; ++shared)
            for (std::size_t sequences = 1; sequences <= 5; ++sequences) {
                pool in(2 * group, 2, 16, 16, 64);
                std::vector<kv::page_entry> common;
                for (std::size_t p = 0; p < shared; ++p)
                    common.push_back(in.page(16));
                std::vector<asking> all;
                for (std::size_t s = 0; s < sequences; ++s) {
                    // Own rows: only its last, a page and some, or two pages. A fork inside a page has a copy of the
                    // page.
                    const std::size_t own = 1 + (s * 11 + sequences * 5) % 33;
                    auto table = common;
                    for (std::size_t at = 0; at < own; at += 16)
                        table.push_back(in.page(static_cast<std::uint32_t>(std::min<std::size_t>(16, own - at))));
                    all.emplace_back(in, table, 16 * shared + own - 1, 1, s);
                }
                check(in, all);
            }
}

TEST_CASE("prefixes may be nested, one a part of another, and rows many") {
    for (const std::uint32_t group : {1u, 2u, 7u, 80u}) {
        pool in(group, 1, 16, 16, 64);
        const std::vector<kv::page_entry> system = {in.page(16), in.page(16)};
        const auto first = joined(system, {in.page(16), in.page(9)}), second = joined(system, {in.page(16)});
        std::vector<asking> all;
        all.emplace_back(in, first, 56, 1, 1);
        all.emplace_back(in, joined(second, {in.page(12)}), 50, 10, 2); // a chunk of a prefill
        all.emplace_back(in, joined(second, {in.page(1)}), 48, 1, 3);
        all.emplace_back(in, system, 0, 32, 4); // the shared pages themselves, from their first row
        all.emplace_back(in, second, 47, 1, 5);
        all.emplace_back(in, std::vector{in.page(16), in.page(5)}, 3, 18, 6);
        all.emplace_back(in, first, 20, 30, 7); // the same pages, other rows
        check(in, all);
        std::ranges::reverse(all);
        check(in, all);
    }
}

TEST_CASE("entries that differ in base, first row or count are not shared") {
    pool in(4, 2, 24, 16, 16);
    const auto page = in.page(16);
    std::vector<asking> all;
    std::uint64_t seed = 0;
    for (const std::int64_t base : {0, 5, -7})
        for (const std::uint32_t first : {0u, 3u})
            for (const std::uint32_t count : {13u, 9u}) {
                auto entry = page;
                entry.base = base;
                entry.first = first;
                entry.count = count;
                all.emplace_back(in, std::vector{entry, in.page(4)}, count + 1, 1, ++seed);
            }
    check(in, all);
}

TEST_CASE("long contexts run on several threads, split by split, and give the bits of one") {
    for (const std::uint32_t kv_heads : {1u, 3u})
        for (const std::size_t length : {1023u, 1024u, 1025u, 3000u, 5121u}) {
            pool in(2 * kv_heads, kv_heads, 16, 64, 100);
            std::vector<kv::page_entry> table;
            for (std::size_t at = 0; at < length; at += 64)
                table.push_back(in.page(static_cast<std::uint32_t>(std::min<std::size_t>(64, length - at))));
            for (const std::size_t rows : {1u, 5u}) {
                std::vector<asking> one;
                one.emplace_back(in, table, length - rows, rows, length);
                check(in, one);
            }
        }
}

TEST_CASE("long shared prefixes are read once per split, and each sequence reads its own rows alone") {
    pool in(4, 2, 16, 64, 80);
    std::vector<kv::page_entry> common;
    for (std::size_t p = 0; p < 33; ++p)
        common.push_back(in.page(64));
    std::vector<asking> all;
    for (std::size_t s = 0; s < 6; ++s) {
        auto table = common;
        table.resize(33 - s % 3 * 7); // forks in three places, around a split
        std::size_t length = table.size() * 64;
        for (std::size_t p = 0; p < s; ++p, length += 64)
            table.push_back(in.page(64));
        table.push_back(in.page(7));
        all.emplace_back(in, table, length + 6, 1, s);
    }
    all.emplace_back(in, common, 2000, 100, 99);
    check(in, all);
}

TEST_CASE("an entry that straddles a split belongs to the split it begins in") {
    pool in(3, 1, 16, 64, 80);
    std::vector<kv::page_entry> table;
    std::size_t length = 0;
    for (std::uint32_t i = 0; length < 3300; ++i) {
        const std::uint32_t count = 20 + i * 13 % 44;
        table.push_back(in.page(count, i % (64 - count), i % 4 == 0 ? 0 : 30));
        length += count;
    }
    std::vector<asking> all;
    for (std::size_t s = 0; s < 3; ++s)
        all.emplace_back(in, table, length - 1 - s * 700, 1 + 7 * s, s);
    check(in, all);
    for (asking& one : all)
        one.spliced = true;
    check(in, all);
}

TEST_CASE("pages before the windows of all rows need not be there") {
    const std::vector<float> sinks = {0.5f, -1.0f, 3.0f, 9.0f};
    pool in(4, 2, 16, 16, 200);
    in.shape.window = 100;
    in.shape.sinks = sinks.data();
    in.shape.soft_cap = 30.0f;
    std::vector<kv::page_entry> whole;
    for (std::size_t p = 0; p < 150; ++p)
        whole.push_back(in.page(16));
    std::vector<asking> all, released;
    for (std::size_t s = 0; s < 4; ++s) {
        auto table = whole;
        table.resize(150 - 30 * s);
        const std::size_t first = table.size() * 16 - 1 - 3 * s, gone = (first + 1 - 100) / 16;
        all.emplace_back(in, table, first, 1 + 3 * s, s);
        for (std::size_t e = 0; e < gone; ++e)
            table[e].page = kv::page_id{0xFFFF'FFFF};
        released.emplace_back(in, table, first, 1 + 3 * s, s);
    }
    kv::thread_pool two(2);
    batch attention;
    std::vector<kv::attention_part> parts;
    for (auto& one : released)
        parts.push_back(one.of(in));
    attention.plan(in.shape, in.source(), parts, two);
    attention.run(kv::layer_id{0}, two);
    for (std::size_t s = 0; s < all.size(); ++s) {
        CHECK(numbers::same_bits(released[s].out, all[s].alone(in)));
        CHECK(numbers::same_bits(released[s].out, released[s].alone(in)));
    }
}

TEST_CASE("an empty batch can be planned") {
    pool in(4, 2, 16, 16, 8);
    std::vector<asking> all;
    all.emplace_back(in, std::vector{in.page(16)}, 15, 1, 1);
    all.emplace_back(in, std::vector{in.page(16)}, 15, 1, 2);
    kv::thread_pool alone;
    batch attention;
    const std::vector<kv::attention_part> parts{all[0].of(in), all[1].of(in)};
    attention.plan(in.shape, in.source(), {}, alone);
    attention.run(kv::layer_id{0}, alone);
    attention.plan(in.shape, in.source(), parts, alone);
    attention.run(kv::layer_id{0}, alone);
    for (const auto& one : all)
        CHECK(numbers::same_bits(one.out, one.alone(in)));
}
