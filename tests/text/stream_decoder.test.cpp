// SPDX-License-Identifier: MIT
#include <kvcache/text/stream_decoder.hpp>
#include <kvcache/text/unicode.hpp>

#include <random>

#include <text/goldens.hpp>

namespace kv = kvcache;
using namespace text_tests;

TEST_CASE("a stream of any tokens is the text decoded at once, and no part splits a code point") {
    std::mt19937 random(7); // seed 7
    for (const auto& entry : std::filesystem::directory_iterator(goldens)) {
        if (!entry.is_directory())
            continue;
        const auto words = open(entry.path());
        std::uniform_int_distribution<int> any(-1, static_cast<int>(words.vocabulary_size()));
        for (int round = 0; round < 200; ++round) {
            std::vector<int> numbers(static_cast<std::size_t>(round % 40));
            for (int& n : numbers)
                n = any(random);
            const kv::decode_options options{.skip_special = round % 2 == 0};
            kv::stream_decoder stream(words, options);
            std::string streamed;
            for (const auto t : tokens(numbers)) {
                const std::string part = stream.push(t);
                CHECK_FALSE(kv::text::first_invalid_utf8(part));
                streamed += part;
            }
            streamed += stream.flush();
            INFO(entry.path().string());
            CHECK(streamed == words.decode(tokens(numbers), options));
        }
    }
}

TEST_CASE("a code point in several tokens comes out whole, with the last of them") {
    const auto words = open(goldens / "gpt2");
    const auto encoded = encode(words, "\u20ac", {});
    REQUIRE(encoded.size() == 3);
    kv::stream_decoder stream(words, {});
    CHECK(stream.push(encoded[0]).empty());
    CHECK(stream.push(encoded[1]).empty());
    CHECK(stream.push(encoded[2]) == "\u20ac");
    CHECK(stream.flush().empty());
}

TEST_CASE("bytes that nothing completes become U+FFFD when the text ends") {
    const auto words = open(goldens / "gpt2");
    const auto encoded = encode(words, "\u20ac", {});
    kv::stream_decoder stream(words, {});
    CHECK(stream.push(encoded[0]).empty());
    CHECK(stream.flush() == "\xef\xbf\xbd");
    CHECK(stream.push(encoded[0]).empty()); // a new text
    CHECK(stream.push(encoded[0]) == "\xef\xbf\xbd");
}

TEST_CASE("byte tokens of a SentencePiece-style tokenizer are one text") {
    const auto words = open(goldens / "llama2");
    const auto bytes = tokens({index_of(*words.try_token("<0xE2>")), index_of(*words.try_token("<0x82>")),
                               index_of(*words.try_token("<0xAC>"))});
    kv::stream_decoder stream(words, {});
    std::string out;
    for (const auto t : bytes)
        out += stream.push(t);
    out += stream.flush();
    CHECK(out == "\u20ac");
    CHECK(words.decode(tokens({index_of(bytes[0]), index_of(bytes[1])}), {}) == "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("after a prompt's tokens the first word keeps its space") {
    const auto words = open(goldens / "llama2");
    const auto encoded = encode(words, "the page", {.add_special_tokens = false});
    kv::stream_decoder fresh(words, {});
    std::string out;
    for (const auto t : encoded)
        out += fresh.push(t);
    CHECK(out == "the page");
    kv::stream_decoder primed(words, {});
    (void)primed.push(*words.try_token("<s>"));
    out.clear();
    for (const auto t : encoded)
        out += primed.push(t);
    CHECK(out == " the page");
}
