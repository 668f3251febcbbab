// SPDX-License-Identifier: MIT
#include <kvcache/text/unicode.hpp>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
using kv::text::normal_form;

namespace {

constexpr std::size_t any = std::numeric_limits<std::size_t>::max();

/// The normal form by utf8proc_map.
std::string by_utf8proc(const std::string& text, normal_form form) {
    int options = UTF8PROC_STABLE;
    options |= form == normal_form::nfc || form == normal_form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    options |= form == normal_form::nfkc || form == normal_form::nfkd ? UTF8PROC_COMPAT : 0;
    utf8proc_uint8_t* made = nullptr;
    const auto size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                     &made, static_cast<utf8proc_option_t>(options));
    REQUIRE(size >= 0);
    std::string out(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size));
    std::free(made);
    return out;
}

} // namespace

TEST_CASE("normal forms are those of utf8proc") {
    constexpr unsigned seed = 20251125;
    std::mt19937 random(seed);
    INFO("seed " << seed);
    const std::vector<char32_t> special{0x41,   0xc5,   0x300,  0x301,   0x315,  0x316,  0x323,  0x344,  0x345,
                                        0xf71,  0xf72,  0xf73,  0xf75,   0x9c7,  0x9be,  0x1100, 0x1161, 0x11a8,
                                        0xac00, 0xfdfa, 0x212b, 0x1d15e, 0x3099, 0x304b, 0xfb1d, 0x5b0,  0xbd};
    for (int round = 0; round < 20'000; ++round) {
        std::string text;
        for (std::size_t n = random() % 12; n > 0; --n) {
            char32_t c = special[random() % special.size()];
            if (random() % 3 == 0)
                c = static_cast<char32_t>(random() % 0x30000);
            if (c < 0xd800 || c > 0xdfff)
                kv::text::append_utf8(text, c);
        }
        for (const auto form : {normal_form::nfc, normal_form::nfd, normal_form::nfkc, normal_form::nfkd})
            REQUIRE(kv::text::normalized(text, form, any) == by_utf8proc(text, form));
    }
}

TEST_CASE("every code point has the normal forms of utf8proc") {
    for (char32_t c = 0; c < 0x110000; ++c) {
        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        std::string text;
        kv::text::append_utf8(text, c);
        for (const auto form : {normal_form::nfc, normal_form::nfkd})
            if (kv::text::normalized(text, form, any) != by_utf8proc(text, form))
                FAIL(static_cast<std::uint32_t>(c));
    }
}

TEST_CASE("a million combining marks in a row are put in order") {
    std::string text = "a";
    std::string ordered = "a";
    constexpr std::size_t pairs = 500'000;
    for (std::size_t i = 0; i < pairs; ++i)
        text += "\u0315\u0316"; // of the classes 232 and 220
    for (std::size_t i = 0; i < 2 * pairs; ++i)
        ordered += i < pairs ? "\u0316" : "\u0315";
    CHECK((kv::text::normalized(text, normal_form::nfc, any) == ordered));
}

TEST_CASE("a normal form that is too long is cut, and still too long") {
    std::string text;
    for (int i = 0; i < 1000; ++i)
        text += "\ufdfa"; // 18 characters in NFKD
    const auto made = kv::text::normalized(text, normal_form::nfkd, 5000);
    CHECK(made.size() > 5000);
    CHECK(made.size() < 20'000);
}
