// SPDX-License-Identifier: MIT
#include <kvcache/codec/all.hpp>
#include <kvcache/testing/codec_laws.hpp>

#include <cmath>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

enum class fault { none, rounds, spills, copies_too_little };

/// The plain codec, with a fault.
template <fault Fault>
struct faulty {
    using role = kv::codec_role;
    struct state {
        kv::plain::state inner;
        [[nodiscard]] std::size_t page_bytes() const { return inner.page_bytes(); }
        [[nodiscard]] std::string name() const { return "faulty"; }
        void encode(std::span<std::byte> page, kv::page_row at, std::span<const float> key,
                    std::span<const float> value) const {
            std::vector<float> other(key.begin(), key.end());
            if (Fault == fault::rounds)
                for (float& number : other)
                    number = std::trunc(number * 256.0f) / 256.0f;
            inner.encode(page, at, other, value);
            if (Fault == fault::spills && at.row > 0)
                inner.encode(page, {at.layer, at.head, at.row - 1}, other, value);
        }
        void copy(std::span<const std::byte> from, std::span<std::byte> to, std::size_t rows) const {
            inner.copy(from, to, Fault == fault::copies_too_little && rows > 0 ? rows - 1 : rows);
        }
        [[nodiscard]] const float* keys(std::span<const std::byte> page, kv::page_tile at, std::span<float> to) const {
            return inner.keys(page, at, to);
        }
        [[nodiscard]] const float* values(std::span<const std::byte> page, kv::page_tile at,
                                          std::span<float> to) const {
            return inner.values(page, at, to);
        }
    };
    [[nodiscard]] state open(kv::page_shape shape) const { return {kv::plain{}.open(shape)}; }
};

// How far a codec may stray, as a share of the largest number. Every lossy codec has its line here.
template <class Codec>
constexpr double tolerance = 0.0;

} // namespace

TEMPLATE_LIST_TEST_CASE("codecs keep their laws", "", kv::codec_policies) {
    for (std::uint64_t seed = 0; seed < 3; ++seed)
        CHECK(kv::testing::codec_laws(TestType{}, seed, tolerance<TestType>) == kv::testing::violations{});
}

TEST_CASE("the laws of a codec bite") {
    CHECK(kv::testing::codec_laws(faulty<fault::none>{}, 1, 0.0).empty());
    CHECK_FALSE(kv::testing::codec_laws(faulty<fault::rounds>{}, 1, 0.0).empty());
    CHECK(kv::testing::codec_laws(faulty<fault::rounds>{}, 1, 0.001).empty());
    CHECK_FALSE(kv::testing::codec_laws(faulty<fault::rounds>{}, 1, 0.0001).empty());
    CHECK_FALSE(kv::testing::codec_laws(faulty<fault::spills>{}, 1, 0.0).empty());
    CHECK_FALSE(kv::testing::codec_laws(faulty<fault::copies_too_little>{}, 1, 0.0).empty());
}
