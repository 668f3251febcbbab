// SPDX-License-Identifier: MIT
#include <kvcache/text/stream_decoder.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <map>
#include <sstream>

#include <text/goldens.hpp>

namespace kv = kvcache;
using namespace text_tests;

TEST_CASE("tokens and text are those of Hugging Face, for every kind of tokenizer") {
    std::map<std::string, kv::tokenizer> opened;
    std::size_t count = 0;
    for (const auto& c : read(goldens / "cases.json")) {
        const auto name = c["tokenizer"].get<std::string>();
        if (!opened.contains(name))
            opened.emplace(name, open(goldens / name));
        const auto& words = opened.at(name);
        const auto text = c["text"].get<std::string>();
        INFO(name << ": " << text);
        const auto encoded = encode(words, text, {.add_special_tokens = c["add_special_tokens"].get<bool>()});
        CHECK(ids(encoded) == c["ids"].get<std::vector<int>>());
        const std::string decoded = c.value("decoded", text);
        CHECK(words.decode(encoded, {}) == decoded);
        CHECK(words.decode(encoded, {.skip_special = true}) == c.value("skipped", decoded));
        ++count;
    }
    CHECK(opened.size() == 18);
    CHECK(count > 250);
}

TEST_CASE("text of a user never becomes a control token") {
    for (const auto& entry : std::filesystem::directory_iterator(goldens)) {
        if (!entry.is_directory())
            continue;
        const auto words = open(entry.path());
        std::string everything;
        for (int i = 0; i < static_cast<int>(words.vocabulary_size()); ++i)
            if (words.is_control(kv::token_id{i}))
                everything += "a" + *words.try_piece(kv::token_id{i}) + " " + *words.try_piece(kv::token_id{i});
        INFO(entry.path().string() << ": " << everything);
        const auto unknown = words.try_token("<unk>");
        for (const auto t : encode(words, everything, {.add_special_tokens = false, .parse_special = false}))
            CHECK((!words.is_control(t) || t == unknown));
        // The whole text as one piece, which ignore_merges finds in the vocabulary.
        for (int i = 0; i < static_cast<int>(words.vocabulary_size()); ++i)
            if (words.is_control(kv::token_id{i}))
                for (const auto t : encode(words, *words.try_piece(kv::token_id{i}),
                                           {.add_special_tokens = false, .parse_special = false}))
                    CHECK((!words.is_control(t) || t == unknown));
    }
}

TEST_CASE("a control token may not be pieced together from a template's and a user's text") {
    const auto words = open(goldens / "qwen");
    const std::vector<kv::text_segment> halves{{"<|im_", true}, {"end|>", false}};
    const auto control = words.try_token("<|im_end|>");
    REQUIRE(control);
    REQUIRE(words.is_control(*control));
    auto encoded = words.encode(halves, false);
    REQUIRE(encoded);
    CHECK(std::ranges::count(*encoded, *control) == 0);
    const std::vector<kv::text_segment> around{
        {"<|im_start|>user\n", true}, {"<|im_end|>", false}, {"<|im_end|>", true}};
    encoded = words.encode(around, false);
    REQUIRE(encoded);
    CHECK(std::ranges::count(*encoded, *control) == 1);
    CHECK(words.decode(*encoded, {}) == "<|im_start|>user\n<|im_end|><|im_end|>");
}

TEST_CASE("segments without control tokens in a user's text encode as the text they make") {
    for (const char* name : {"qwen", "llama3", "llama2", "gemma", "first", "digits"}) {
        const auto words = open(goldens / name);
        const std::vector<kv::text_segment> parts{
            {"<|im_start|>user\n", true}, {"e", false}, {"\xcc\x81 caf", false}, {"e  x", true}, {" page\n", false}};
        std::string whole;
        for (const auto& p : parts)
            whole += p.text;
        const auto encoded = words.encode(parts, true);
        REQUIRE(encoded);
        INFO(name);
        CHECK(ids(*encoded) == ids(encode(words, whole, {.add_special_tokens = true})));
    }
}

TEST_CASE("what is not UTF-8 is refused by the offset of its first byte") {
    const auto words = open(goldens / "gpt2");
    for (const char* bad : {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xc0\x80", "ab\xf4\x90\x80\x80"}) {
        const auto encoded = words.encode(bad, {});
        REQUIRE_FALSE(encoded);
        CHECK(encoded.error().field == "text");
        CHECK(encoded.error().message.find("byte 2") != std::string::npos);
    }
}

TEST_CASE("identifiers without a token decode to nothing") {
    const auto words = open(goldens / "llama2");
    CHECK(words.decode(tokens({-1, 1 << 30, static_cast<int>(words.vocabulary_size())}), {}).empty());
}

TEST_CASE("a piece of a million bytes is encoded in a moment") {
    for (const char* name : {"gpt2", "llama2", "unknown"}) {
        const auto words = open(goldens / name);
        for (const char* unit : {"a", " ", "the", "\n \t", "\U0001f642"}) {
            std::string text;
            while (text.size() < 1'000'000)
                text += unit;
            INFO(name << ": " << unit);
            CHECK_FALSE(encode(words, text, {.add_special_tokens = false}).empty());
        }
    }
}

TEST_CASE("the digest is that of the file's bytes") {
    const auto a = open(goldens / "gpt2");
    CHECK(a.digest() == open(goldens / "gpt2").digest());
    CHECK(a.digest() != open(goldens / "qwen").digest());
}

TEST_CASE("special tokens have the names that the configuration gives them") {
    const kv::tokenizer_config config({{"bos_token", "<s>"}, {"eos_token", "nowhere"}}, {});
    const auto file = kv::read_file(goldens / "llama2" / "tokenizer.json", 1u << 20);
    REQUIRE(file);
    const auto words = kv::tokenizer::parse(*file, config);
    REQUIRE(words);
    CHECK(words->bos() == words->try_token("<s>"));
    CHECK_FALSE(words->eos());
}

namespace {

std::vector<std::string> lines_between(const std::string& text, const std::string& separator) {
    std::vector<std::string> parts;
    std::size_t done = 0;
    for (auto at = text.find(separator); at != std::string::npos; at = text.find(separator, done)) {
        parts.push_back(text.substr(done, at - done));
        done = at + separator.size();
    }
    parts.push_back(text.substr(done));
    return parts;
}

} // namespace

TEST_CASE("llama.cpp's vectors") {
    const std::map<std::string, std::string> directories{{"gpt-2", "gpt2"}, {"phi-3", "phi-3-mini"}};
    for (const auto& [name, directory] : directories) {
        const auto stem = shared / "vectors" / "ggml" / ("ggml-vocab-" + name + ".gguf");
        if (!have(stem.string() + ".inp") || !have(shared / "tokenizers" / directory))
            continue;
        const auto words = open(shared / "tokenizers" / directory);
        const auto texts = lines_between(*kv::read_file(stem.string() + ".inp", 1u << 20), "\n__ggml_vocab_test__\n");
        const auto lines = lines_between(*kv::read_file(stem.string() + ".out", 1u << 20), "\n");
        REQUIRE(lines.size() >= texts.size());
        for (std::size_t i = 0; i < texts.size(); ++i) {
            std::vector<int> wanted;
            std::istringstream numbers(lines[i]);
            for (int n = 0; numbers >> n;)
                wanted.push_back(n);
            INFO(name << ": " << texts[i]);
            CHECK(ids(encode(words, texts[i], {.add_special_tokens = false})) == wanted);
        }
    }
}

TEST_CASE("transformers.js's vectors") {
    const auto file = shared / "vectors" / "transformersjs-gpt2.json";
    if (!have(file))
        return;
    const auto vectors = read(file);
    const auto words = open(shared / "tokenizers" / vectors["tokenizer"].get<std::string>());
    for (const auto& c : vectors["cases"]) {
        const auto text = c["text"].get<std::string>();
        INFO(text);
        const auto encoded = encode(words, text, {.add_special_tokens = vectors["add_special_tokens"].get<bool>()});
        CHECK(ids(encoded) == c["ids"].get<std::vector<int>>());
        CHECK(words.decode(encoded, {.clean_up_spaces = true}) == c["decoded"].get<std::string>());
        for (std::size_t i = 0; i < encoded.size(); ++i)
            CHECK(*words.try_piece(encoded[i]) == c["tokens"][i].get<std::string>());
    }
}

TEST_CASE("whole books round-trip through tokens, at once and as a stream") {
    for (const char* name : {"gpt2", "smollm", "minimind", "phi-3-mini"}) {
        const auto directory = shared / "tokenizers" / name;
        if (!have(directory) || !have(shared / "text"))
            continue;
        const auto words = open(directory);
        for (const auto& entry : std::filesystem::directory_iterator(shared / "text")) {
            const auto text = kv::read_file(entry.path(), 1u << 24);
            REQUIRE(text);
            INFO(name << ": " << entry.path().string());
            const auto encoded = encode(words, *text, {.add_special_tokens = false, .parse_special = false});
            CHECK((words.decode(encoded, {}) == *text));
            kv::stream_decoder stream(words, {});
            std::string streamed;
            for (const auto t : encoded)
                streamed += stream.push(t);
            streamed += stream.flush();
            CHECK((streamed == *text));
        }
    }
}
