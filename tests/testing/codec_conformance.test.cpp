// SPDX-License-Identifier: MIT
#include <kvcache/codec/all.hpp>
#include <kvcache/testing/codec_conformance.hpp>

#include <cmath>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

enum class fault { none, rounds, spills, copies_too_little };

/// The codec f32, with a fault.
template <fault Fault>
struct faulty {
    using role = kv::codec_role;
    struct state {
        kv::codec::f32::state inner;
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
    [[nodiscard]] state open(kv::page_shape shape) const { return {kv::codec::f32{}.open(shape)}; }
};

// The tolerance of each codec: per value as a fraction of the largest, or averaged over a page as a fraction of the
// root mean square. Every lossy codec has its line here. Values are uniform: their root mean square is 0.577 of the
// largest.
template <class Codec>
constexpr double tolerance = 0.0;
template <>
constexpr double tolerance<kv::codec::bf16> = 0.002;
template <>
constexpr double tolerance<kv::codec::f16> = 0.0003;
template <kv::codec::kv_layout Layout>
constexpr double tolerance<kv::codec::row_major<kv::bfloat16, Layout>> = 0.002;
template <kv::codec::kv_layout Layout>
constexpr double tolerance<kv::codec::row_major<kv::half, Layout>> = 0.0003;
template <>
constexpr double tolerance<kv::codec::int8> = 0.006;
template <>
constexpr double tolerance<kv::codec::int8_grouped> = 0.006;
template <>
constexpr double tolerance<kv::codec::int4> = 0.085;
template <>
constexpr double tolerance<kv::codec::int4_per_channel> = 0.07;
template <>
constexpr double tolerance<kv::codec::hadamard<kv::codec::int4>> = 0.1;
template <>
constexpr double tolerance<kv::codec::codebook<5>> = 0.07;
template <>
constexpr double tolerance<kv::codec::codebook<4>> = 0.13;
template <>
constexpr double tolerance<kv::codec::codebook<3>> = 0.23;
template <>
constexpr double tolerance<kv::codec::codebook<2>> = 0.4;
template <> // the deltas of independent rows are larger than the rows
constexpr double tolerance<kv::codec::delta<3>> = 0.33;
template <>
constexpr double tolerance<kv::codec::mixed_kv<kv::codec::delta<3>, kv::codec::codebook<3>>> = 0.33;
template <>
constexpr double tolerance<kv::codec::mixed_kv<kv::codec::int4_per_channel, kv::codec::int4>> = 0.085;
template <>
constexpr double tolerance<kv::codec::keep_sinks<kv::codec::int8>> = 0.006;
template <>
constexpr double tolerance<kv::codec::keep_recent<kv::codec::int8>> = 0.006;

} // namespace

TEMPLATE_LIST_TEST_CASE("codecs pass the conformance tests", "", kv::codec_policies) {
    for (std::uint64_t seed = 0; seed < 3; ++seed)
        CHECK(kv::testing::codec_conformance(TestType{}, seed, tolerance<TestType>) == kv::testing::violations{});
}

TEST_CASE("the conformance tests of a codec find faults") {
    CHECK(kv::testing::codec_conformance(faulty<fault::none>{}, 1, 0.0).empty());
    CHECK_FALSE(kv::testing::codec_conformance(faulty<fault::rounds>{}, 1, 0.0).empty());
    CHECK(kv::testing::codec_conformance(faulty<fault::rounds>{}, 1, 0.001).empty());
    CHECK_FALSE(kv::testing::codec_conformance(faulty<fault::rounds>{}, 1, 0.0001).empty());
    CHECK_FALSE(kv::testing::codec_conformance(faulty<fault::spills>{}, 1, 0.0).empty());
    CHECK_FALSE(kv::testing::codec_conformance(faulty<fault::copies_too_little>{}, 1, 0.0).empty());
}
