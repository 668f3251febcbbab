// SPDX-License-Identifier: MIT
#include "../../bench/traces/byte_source.hpp"

#include <algorithm>
#include <fstream>

#include "trace_files.hpp"
#include <catch2/catch.hpp>

using namespace trace_tests;

namespace {

// Returns the bytes of a source, read in pieces of `step`; an error appends "!" and its message.
std::string drained(bench::byte_source source, std::size_t step) {
    std::string all, piece(step, '\0');
    for (;;) {
        const auto got = source.read(piece);
        if (!got)
            return "!" + source.name() + "!" + got.error().message;
        if (*got == 0)
            return source.produced() == all.size() && (all.empty() || source.share() == 1.0) ? all : "miscounted";
        all.append(piece, 0, *got);
    }
}

std::string long_text() {
    std::string text;
    for (int i = 0; i < 60000; ++i)
        text += std::to_string(i * 7919) + '\n';
    return text;
}

} // namespace

TEST_CASE("plain, gzip and zstd bytes read the same, in any steps") {
    const std::string text = long_text(), half = text.substr(0, text.size() / 2), rest = text.substr(half.size());
    for (const std::size_t step : {1u, 7u, 4096u, 1u << 20}) {
        INFO("step " << step);
        for (const std::string& bytes :
             {text, gzipped(text), zstd_compressed(text), gzipped(half) + gzipped("") + gzipped(rest),
              zstd_compressed(half) + zstd_compressed("") + zstd_compressed(rest)})
            REQUIRE((drained(bench::byte_source::over(bytes, "t"), step) == text));
        CHECK(drained(bench::byte_source::over("", "t"), step).empty());
        CHECK(drained(bench::byte_source::over(gzipped(""), "t"), step).empty());
    }
}

TEST_CASE("a file is read like memory") {
    const auto path = std::filesystem::temp_directory_path() / "kvcache_byte_source.gz";
    std::ofstream(path, std::ios::binary) << gzipped(long_text());
    CHECK((drained(*bench::byte_source::open(path), 1000) == long_text()));
    std::filesystem::remove(path);
    CHECK(bench::byte_source::open(path).error().code == kv::error_code::not_found);
    CHECK(bench::byte_source::open(path.parent_path()).error().code == kv::error_code::io);
}

TEST_CASE("compressed data that end early or are damaged are refused with their place") {
    for (const std::string& whole : {gzipped(long_text()), zstd_compressed(long_text())}) {
        for (const std::size_t kept : {whole.size() - 1, whole.size() / 2, std::size_t{12}}) {
            const std::string words = drained(bench::byte_source::over(whole.substr(0, kept), "t"), 4096);
            CHECK(words ==
                  "!t!t, byte " + std::to_string(kept) + " of the file: the compressed data end in the middle");
        }
        std::string damaged = whole;
        for (std::size_t i = damaged.size() / 2; i < damaged.size() / 2 + 64; ++i)
            damaged[i] = static_cast<char>(~damaged[i]);
        CHECK(drained(bench::byte_source::over(damaged, "t"), 4096).substr(0, 11) == "!t!t, byte ");
        CHECK(drained(bench::byte_source::over(whole + "garbage", "t"), 4096).substr(0, 11) == "!t!t, byte ");
    }
}

TEST_CASE("lines come without their ends, whatever the buffer cuts") {
    std::string text;
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < 3000; ++i) {
        lines.emplace_back(i * 37 % 500, static_cast<char>('a' + i % 26));
        text += lines.back() + (i % 3 == 0 ? "\r\n" : "\n");
    }
    for (const bool ended : {true, false}) {
        bench::line_reader reader(bench::byte_source::over(ended ? text + "last\n" : text + "last", "t"));
        std::string_view line;
        for (const std::string& expected : lines) {
            REQUIRE(*reader.next(line));
            REQUIRE(line == expected);
        }
        CHECK(*reader.next(line));
        CHECK(line == "last");
        CHECK(reader.number() == 3001);
        CHECK_FALSE(*reader.next(line));
        CHECK_FALSE(*reader.next(line));
    }
}

TEST_CASE("a NUL byte and an endless line are refused by their number") {
    std::string_view line;
    bench::line_reader nul(bench::byte_source::over(std::string("a\nb\0c\n", 6), "t"));
    CHECK(*nul.next(line));
    CHECK(nul.next(line).error().message == "t, line 2: the line has a NUL byte");
    bench::line_reader endless(bench::byte_source::over("a\n" + std::string((16u << 20) + 100, 'x'), "t"));
    CHECK(*endless.next(line));
    const auto refused = endless.next(line);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::out_of_range);
    CHECK(refused.error().message == "t, line 2: the line is longer than 16 MiB");
}
