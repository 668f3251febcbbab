// SPDX-License-Identifier: MIT
#include <kvcache/text/regex.hpp>

#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using matches = std::vector<std::pair<std::size_t, std::size_t>>;

/// All matches by plain PCRE2, without horizon, windows or limits of ours.
matches by_pcre2(std::string_view pattern, std::string_view text) {
    const auto translated = kv::text::pcre2_dialect(pattern, "pattern");
    REQUIRE(translated);
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* const compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                                               PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &offset, nullptr);
    REQUIRE(compiled != nullptr);
    pcre2_match_data* const data = pcre2_match_data_create_from_pattern(compiled, nullptr);
    matches all;
    std::optional<std::size_t> last_end;
    for (std::size_t at = 0; at <= text.size();) {
        if (pcre2_match(compiled, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0, data, nullptr) < 0)
            break;
        const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(data);
        if (found[0] == found[1] && last_end == found[1]) {
            at = found[1] + 1;
            while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80)
                ++at;
            continue;
        }
        all.emplace_back(found[0], found[1]);
        at = found[1];
        last_end = at;
    }
    pcre2_match_data_free(data);
    pcre2_code_free(compiled);
    return all;
}

} // namespace

TEST_CASE("matches are those of PCRE2, however long they are and wherever they begin") {
    constexpr unsigned seed = 20251125;
    std::mt19937 random(seed);
    INFO("seed " << seed);
    const std::vector<std::string> patterns{
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        R"([\p{L}\p{M}]+[0-9]*(?<=b1)|\s{2,}$|^a)",
        R"((?<=a)b*(?=\n| ))",
        R"(a*?b)",
        R"((ab|a)*c)",
        R"(x*)",
        R"(\n+$|$)",
        R"([^a]{40,200})",
        R"((?=a+b)a)",
        R"(\z|\A.)"};
    const std::vector<std::string> units{"a",    "b",  "c",      "ab",     "1", " ", "\n",
                                         "\r\n", "'s", "\u00e9", "\u4e2d", ".", "x"};
    constexpr int rounds = 300;
    std::size_t refused = 0;
    for (int round = 0; round < rounds; ++round) {
        std::string text;
        while (text.size() < random() % 1500) {
            const auto& unit = units[random() % units.size()];
            for (std::size_t n = random() % 8 == 0 ? random() % 300 : 1 + random() % 4; n > 0; --n)
                text += unit;
        }
        for (const auto& pattern : patterns) {
            const auto expression = kv::text::regex::open(pattern, "pattern");
            REQUIRE(expression);
            matches all;
            const auto searched =
                expression->each_match(text, [&](std::size_t begin, std::size_t end) { all.emplace_back(begin, end); });
            INFO(pattern << " in " << text);
            matches expected = by_pcre2(pattern, text);
            if (!searched) { // too much work, which the patterns of real tokenizers never are
                CHECK(searched.error().code == kv::error_code::out_of_range);
                CHECK(&pattern - patterns.data() > 1);
                REQUIRE(all.size() <= expected.size());
                expected.resize(all.size());
                ++refused;
            }
            REQUIRE(all == expected);
        }
    }
    CHECK(refused < rounds * patterns.size() / 10);
}

TEST_CASE("a search whose work is not linear ends in an error that names the pattern") {
    const std::string text = std::string(200'000, 'a') + "d";
    for (const char* pattern :
         {"[ab]*[zy]", "a*a*[bc]", "(a+)+$|(a|aa)+c", "(?=[ab]*z)a|b", "a{1,60000}[bc]", "(?<![ab]z)(?:a|aa)*[yz]"}) {
        const auto expression = kv::text::regex::open(pattern, "normalizer.pattern.Regex");
        REQUIRE(expression);
        const auto searched = expression->each_match(text, [](std::size_t, std::size_t) {});
        INFO(pattern);
        REQUIRE_FALSE(searched);
        CHECK(searched.error().code == kv::error_code::out_of_range);
        CHECK(searched.error().field == "normalizer.pattern.Regex");
    }
}

TEST_CASE("a long run that a pattern of real tokenizers reads twice is no error") {
    const auto expression = kv::text::regex::open(R"(\s*[\r\n]+|\s+(?!\S)|\s+|\p{L}+)", "pattern");
    REQUIRE(expression);
    std::size_t count = 0;
    const auto searched = expression->each_match(std::string(1'000'000, ' ') + "b" + std::string(1'000'000, 'c'),
                                                 [&](std::size_t, std::size_t) { ++count; });
    REQUIRE(searched);
    CHECK(count == 3);
}

TEST_CASE("references to groups are refused") {
    CHECK_FALSE(kv::text::regex::open(R"((a+)b\1)", "pattern"));
    CHECK_FALSE(kv::text::regex::open(R"((?<n>a+)\k<n>)", "pattern"));
    CHECK_FALSE(kv::text::regex::open(R"((?P<n>a+)(?P=n))", "pattern"));
}
