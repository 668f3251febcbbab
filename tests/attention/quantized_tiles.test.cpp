// SPDX-License-Identifier: MIT
// Tiles that are read in quantized form, compared with the same tiles decoded first.
#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/cache/any_codec.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/storage/heap.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/pages.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using any = kv::any_codec<std::tuple<kv::codec::bf16, kv::codec::f16, kv::codec::int8, kv::codec::int8_grouped,
                                     kv::codec::int4, kv::codec::int4_per_channel, kv::codec::hadamard<kv::codec::int4>,
                                     kv::codec::codebook<4>, kv::codec::codebook<3>, kv::codec::codebook<2>,
                                     kv::codec::mixed_kv<kv::codec::int4_per_channel, kv::codec::int8>,
                                     kv::codec::mixed_kv<kv::codec::int4, kv::codec::int4_per_channel>,
                                     kv::codec::delta<3>, kv::codec::mixed_kv<kv::codec::delta<4>, kv::codec::int4>,
                                     kv::codec::mixed_kv<kv::codec::delta<3>, kv::codec::codebook<3>>,
                                     kv::codec::mixed_kv<kv::codec::delta<2>, kv::codec::int8>>>;

/// The same codec without its quantized operands.
struct decoding {
    const any::state& inner;
    [[nodiscard]] std::size_t page_bytes() const { return inner.page_bytes(); }
    [[nodiscard]] std::string name() const { return inner.name(); }
    [[nodiscard]] kv::page_shape shape() const { return inner.shape(); }
    [[nodiscard]] kv::residual_window window() const { return inner.window(); }
    void transform_key(std::span<float> row) const { inner.transform_key(row); }
    void transform_value(std::span<float> row) const { inner.transform_value(row); }
    void inverse_transform(std::span<float> row) const { inner.inverse_transform(row); }
    void encode(std::span<std::byte> page, kv::layer_id layer, kv::head_id head,
                std::span<const std::byte> rows) const {
        inner.encode(page, layer, head, rows);
    }
    [[nodiscard]] const float* keys(std::span<const std::byte> page, kv::page_tile at, std::span<float> to) const {
        return inner.keys(page, at, to);
    }
    [[nodiscard]] const float* values(std::span<const std::byte> page, kv::page_tile at, std::span<float> to) const {
        return inner.values(page, at, to);
    }
};

struct past {
    static constexpr std::uint32_t pages = 5;
    std::uint32_t page_tokens;
    kv::page_shape shape;
    any::state codec;
    kv::storage::heap::state storage;
    std::vector<std::unique_ptr<kv::codec::residual_page>> rows;
    std::vector<kv::page_entry> table;
    std::vector<const kv::codec::residual_page*> exact;
    std::vector<float> queries;
    kv::attention_shape asks;

    past(const std::string& name, std::uint32_t dim, std::uint32_t group, std::uint32_t tokens = 32)
        : page_tokens(tokens),
          shape{1, 2, dim, page_tokens},
          codec(any::named(name)->open(shape)),
          storage(kv::storage::heap{}.open(pages, codec.page_bytes())),
          queries(numbers::uniforms(3, std::size_t{pages} * page_tokens * 2 * group * dim, 2.0f)),
          asks{2 * group, 2, dim, 1.0f / std::sqrt(static_cast<float>(dim)), nullptr} {
        for (std::uint32_t p = 0; p < pages; ++p) {
            REQUIRE(storage.acquire(kv::page_id{p}));
            rows.push_back(std::make_unique<kv::codec::residual_page>(shape));
            rows.back()->begin(0);
            for (std::uint32_t row = 0; row < page_tokens; ++row) {
                const auto keys = numbers::uniforms(100 + p * page_tokens + row, 2 * dim, 4.0f);
                const auto values = numbers::uniforms(900 + p * page_tokens + row, 2 * dim);
                rows.back()->write(codec, storage.bytes(kv::page_id{p}), kv::layer_id{0}, row, keys, values);
            }
            table.push_back({.page = kv::page_id{p}, .count = page_tokens});
            exact.push_back(rows.back().get());
        }
    }

    // All positions from `first` on, `at_once` rows a call. (rows, heads, head_dim)
    template <class Codec>
    [[nodiscard]] std::vector<float> run(const Codec& by, std::size_t first, std::size_t at_once) const {
        const std::size_t width = std::size_t{asks.heads} * shape.head_dim, count = pages * page_tokens - first;
        std::vector<float> out(count * width);
        const kv::query_rows asked{queries.data() + first * width, nullptr, out.data(), width, width, first, count};
        for (std::uint32_t head = 0; head < 2; ++head)
            for (std::size_t row = 0; row < count; row += at_once)
                kv::paged_attention(
                    asks, kv::page_source(by, storage),
                    {{table, exact}, ::pages::rows_between(asked, row, std::min(row + at_once, count), shape.head_dim)},
                    kv::layer_id{0}, kv::head_id{head});
        return out;
    }
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        error += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
        size += double{b[i]} * double{b[i]};
    }
    return std::sqrt(error / size);
}

// Codebooks too, with a name that does not depend on the compiler.
std::vector<std::string> all_names() {
    std::vector<std::string> made(1);
    int depth = 0;
    for (const char c : any::names()) {
        depth += c == '<' ? 1 : c == '>' ? -1 : 0;
        if (c == ',' && depth == 0)
            made.emplace_back();
        else if (c != ' ' || depth > 0)
            made.back() += c;
    }
    return made;
}

} // namespace

TEST_CASE("numbers that are read as they are coded give the bits of the decoded tile") {
    for (const char* name : {"bf16", "f16"})
        for (const std::uint32_t dim : {16u, 40u, 128u})
            for (const std::uint32_t group : {1u, 3u, 7u}) {
                CAPTURE(name, dim, group);
                const past all(name, dim, group);
                CHECK(numbers::same_bits(all.run(all.codec, 0, 9), all.run(decoding{all.codec}, 0, 9)));
            }
}

TEST_CASE("codes and scales give what the decoded tile gives, but for the coding of queries") {
    for (const std::string& name : all_names())
        for (const std::uint32_t dim : {20u, 48u, 64u, 128u}) {
            CAPTURE(name, dim);
            const past all(name, dim, 2);
            // int16 queries meet 8-bit codes; int8 queries meet codes with ten times their error or more.
            const bool wide = name == "bf16" || name == "f16" || name == "int8" || name == "int8_grouped";
            CHECK(distance(all.run(all.codec, 0, 5), all.run(decoding{all.codec}, 0, 5)) < (wide ? 2e-3 : 1.2e-2));
        }
}

TEST_CASE("the bits of a query over quantized tiles do not depend on neighboring queries") {
    for (const std::string& name : all_names()) {
        CAPTURE(name);
        past all(name, 48, 3);
        for (const std::uint32_t window : {0u, 1u, 40u, 64u}) {
            all.asks.window = window;
            const auto want = all.run(all.codec, 0, 1);
            for (const std::size_t at_once : {2u, 3u, 5u, 16u})
                CHECK(numbers::same_bits(all.run(all.codec, 0, at_once), want));
        }
    }
}

TEST_CASE("with a window and a soft cap, codes and scales give what the decoded tile gives") {
    for (const std::string& name : all_names()) {
        CAPTURE(name);
        past all(name, 64, 2);
        const auto far = all.run(all.codec, 0, 5);
        all.asks.window = 37;
        all.asks.soft_cap = 20.0f;
        const auto got = all.run(all.codec, 0, 5);
        CHECK(distance(got, all.run(decoding{all.codec}, 0, 5)) < 1.2e-2);
        CHECK(distance(got, far) > 0.1);
    }
}

TEST_CASE("deltas are summed from the first row of a group, whichever tile attention begins with") {
    // Attention takes four tiles at once, and a group has three: each of its tiles begins a call somewhere.
    for (const std::string& name : all_names()) {
        if (name.find("delta") == name.npos)
            continue;
        CAPTURE(name);
        const past all(name, 64, 2, 48);
        const auto own = all.run(all.codec, 0, 5);
        CHECK(distance(own, all.run(decoding{all.codec}, 0, 5)) < 1.2e-2);
        CHECK(numbers::same_bits(own, all.run(all.codec, 0, 1)));
    }
}

TEST_CASE("attention over codes gives the same bits in every build") {
    const auto digest = [](const char* name) {
        const past all(name, 40, 3);
        const std::vector<float> out = all.run(all.codec, 0, 4);
        return kv::to_string(kv::digest_builder().bytes(std::as_bytes(std::span(out))).finish());
    };
    CHECK(digest("bf16") == "92c6ff0541ffbaa68a1d0b7a53d8fb85");
    CHECK(digest("int8") == "7e11a0000e5b02147f6c9fec9d4f558a");
    CHECK(digest("int8_grouped") == "1ad8d4cfddc349c0e9fb3982ec226fd6");
    CHECK(digest("int4") == "9903485fdb94563dc9fcbf6b3cd6d87b");
    CHECK(digest("int4_per_channel") == "16d322c33b51a7fa1af7fe9207d46664");
    CHECK(digest("codebook<4>") == "d537fcc232d16b4809819d418c11b472");
    CHECK(digest("codebook<3>") == "3fd0026667f715a605a427f708992253");
    CHECK(digest("delta<3>") == "f7a001359303a8c47a271c31eb60ba06");
    CHECK(digest("mixed_kv<delta<4>, int4>") == "c078a59c8a31a52758ccfca9f717e29a");
}
