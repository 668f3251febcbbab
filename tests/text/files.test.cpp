// SPDX-License-Identifier: MIT
#include <kvcache/core/json.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>
#include <kvcache/text/unicode.hpp>

#include <random>
#include <utility>

#include <text/goldens.hpp>

namespace kv = kvcache;
using namespace text_tests;

namespace {

/// Parses a tokenizer.json with one member replaced, and returns the error.
kv::error refusal(const std::string& pointer, const char* value) {
    kv::json file = kv::json::parse(R"({
        "version": "1.0", "added_tokens": [{"id": 3, "content": "<x>", "special": true}],
        "normalizer": {"type": "Replace", "pattern": {"String": "q"}, "content": "a"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated"},
        "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}], "special_tokens": {}},
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
    file[kv::json::json_pointer(pointer)] = kv::json::parse(value);
    const auto opened = kv::tokenizer::parse(file.dump(), {});
    return opened ? kv::error{kv::error_code::malformed, "none", "it was opened"} : opened.error();
}

} // namespace

TEST_CASE("a broken or unknown field is refused by its name") {
    const auto field = [](const char* pointer, const char* value) { return refusal(pointer, value).field; };
    CHECK(field("/version", "\"1.0\"") == "none");
    CHECK(field("/version", "\"2.0\"") == "version");
    CHECK(field("/model", "7") == "model");
    CHECK(field("/model/type", "\"Unigram\"") == "model.type");
    CHECK(field("/model/dropout", "0.1") == "model.dropout");
    CHECK(field("/model/unk_token", "\"?\"") == "model.unk_token");
    CHECK(field("/model/vocab", "[]") == "model.vocab");
    CHECK(field("/model/vocab/a", "\"0\"") == "model.vocab");
    CHECK(field("/model/vocab/a", "1") == "model.vocab");
    CHECK(field("/model/vocab/a", "-1") == "model.vocab");
    CHECK(field("/model/vocab/a", "4000000000") == "model.vocab");
    CHECK(field("/model/vocab/a", "1e30") == "model.vocab");
    CHECK(field("/model/merges", "{}") == "model.merges");
    CHECK(field("/model/merges/0", "\"a z\"") == "model.merges[0]");
    CHECK(field("/model/merges/0", "\"b a\"") == "model.merges[0]");
    CHECK(field("/model/merges/0", "\"ab\"") == "model.merges[0]");
    CHECK(field("/model/merges/0", "[\"a\"]") == "model.merges[0]");
    CHECK(field("/model/merges/0", "[\"a\", \"b\"]") == "none");
    CHECK(field("/model/merges/0", "7") == "model.merges[0]");
    CHECK(field("/normalizer/type", "\"Foo\"") == "normalizer.type");
    CHECK(field("/normalizer/pattern", "{}") == "normalizer.pattern.Regex");
    CHECK(field("/pre_tokenizer/type", "\"Foo\"") == "pre_tokenizer.type");
    CHECK(field("/pre_tokenizer/behavior", "\"Foo\"") == "pre_tokenizer.behavior");
    CHECK(field("/pre_tokenizer/pattern/Regex", "\"(\"") == "pre_tokenizer.pattern.Regex");
    CHECK(field("/pre_tokenizer/pattern/Regex", "\"[a&&b]\"") == "pre_tokenizer.pattern.Regex");
    CHECK(field("/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Foo"}]})") ==
          "pre_tokenizer.pretokenizers[0].type");
    CHECK(field("/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})") == "pre_tokenizer.replacement");
    CHECK(field("/pre_tokenizer", R"({"type": "Metaspace", "prepend_scheme": "x"})") == "pre_tokenizer.prepend_scheme");
    CHECK(field("/post_processor/type", "\"Foo\"") == "post_processor.type");
    CHECK(field("/post_processor/single", "[]") == "post_processor.single");
    CHECK(field("/post_processor/single/0", R"({"SpecialToken": {"id": "q"}})") == "post_processor.special_tokens.q");
    CHECK(field("/decoder/type", "\"Foo\"") == "decoder.type");
    CHECK(field("/decoder", R"({"type": "Strip", "content": "ab", "start": 1, "stop": 0})") == "decoder.content");
    CHECK(field("/added_tokens/0/id", "1") == "added_tokens[0].id");
    CHECK(field("/added_tokens/0/id", "4000000000") == "added_tokens[0].id");
    CHECK(field("/added_tokens/0/content", "\"a\"") == "added_tokens[0].id");
    CHECK(field("/added_tokens/0/content", "null") == "added_tokens[0].content");
    CHECK(refusal("/pre_tokenizer/type", "\"Foo\"").message == "the pre-tokenizer \"Foo\" is not known");
}

TEST_CASE("a missing file, broken JSON and deep nesting are errors") {
    CHECK(kv::tokenizer::open(goldens / "nowhere").error().code == kv::error_code::not_found);
    CHECK(kv::tokenizer::parse("{", {}).error().field == "tokenizer.json");
    CHECK(kv::tokenizer::parse("[]", {}).error().code == kv::error_code::mismatched);
    CHECK_FALSE(kv::tokenizer::parse(R"({"model": {}, "model": {}})", {}));
    std::string deep(100'000, '[');
    CHECK_FALSE(kv::tokenizer::parse(deep, {}));
    deep += std::string(100'000, ']');
    CHECK_FALSE(kv::tokenizer::parse(deep, {}));
}

TEST_CASE("a hostile pattern ends in an error, not in a hang") {
    const char* file = R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$|(a|aa)+c"},
        "behavior": "Isolated"}, "model": {"vocab": {"a": 0}, "merges": []}})";
    const auto words = kv::tokenizer::parse(file, {});
    REQUIRE(words);
    const auto encoded = words->encode(std::string(50'000, 'a') + "b", {});
    REQUIRE_FALSE(encoded);
    CHECK(encoded.error().field == "regular expression");
}

TEST_CASE("a damaged file is refused, or works") {
    constexpr unsigned seed = 20240607;
    std::mt19937 random(seed);
    INFO("seed " << seed);
    std::size_t opened = 0;
    std::size_t refused = 0;
    for (const char* name : {"llama3", "first", "flags", "rewritten"}) {
        const auto whole = kv::read_file(goldens / name / "tokenizer.json", 1u << 20);
        REQUIRE(whole);
        for (int round = 0; round < 1000; ++round) {
            std::string bytes = *whole;
            const auto somewhere = [&] { return random() % bytes.size(); };
            if (round % 10 == 0)
                bytes.resize(somewhere());
            for (auto n = random() % 4; n > 0 && !bytes.empty(); --n) {
                // Half of the faults hit the settings, which precede the vocabulary.
                const auto at = random() % 2 == 0 ? somewhere() : random() % std::min<std::size_t>(bytes.size(), 1500);
                switch (random() % 4) {
                case 0:
                    bytes[at] = static_cast<char>(random());
                    break;
                case 1:
                    bytes[at] = "0123456789{}[]\",:\\tfn-"[random() % 22];
                    break;
                case 2:
                    bytes.erase(at, 1 + random() % 8);
                    break;
                default:
                    bytes.insert(at, bytes.substr(somewhere(), random() % 24));
                }
            }
            const auto words = kv::tokenizer::parse(bytes, {});
            if (!words) {
                ++refused;
                CHECK_FALSE(words.error().message.empty());
                continue;
            }
            ++opened;
            if (const auto encoded = words->encode("<s>The page's 123 \u00e9\xcc\x81 \U0001f642\n\n  <R> word", {}))
                CHECK_FALSE(kv::text::first_invalid_utf8(words->decode(*encoded, {})));
        }
    }
    WARN("seed " << seed << ": " << opened << " damaged files opened, " << refused << " refused");
    CHECK(opened > 100);
    CHECK(refused > 1000);
}

TEST_CASE("a damaged chat template is refused, or works") {
    constexpr unsigned seed = 42;
    std::mt19937 random(seed);
    const auto file = read(goldens / "chats.json");
    const auto messages = kv::json::parse(R"([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])");
    for (const auto& [name, source] : file["templates"].items())
        for (int round = 0; round < 500; ++round) {
            std::string bytes = source.get<std::string>();
            for (auto n = 1 + random() % 3; n > 0 && !bytes.empty(); --n) {
                const auto at = random() % bytes.size();
                if (random() % 2 == 0)
                    bytes[at] = "{}%#'\"|.()[]-+~ \nabn0_"[random() % 23];
                else
                    bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 20));
            }
            INFO("seed " << seed << ", " << name << ": " << bytes);
            if (const auto chat = kv::chat_template::parse_any(bytes, {{"bos_token", "<s>"}}))
                if (const auto rendered = chat->render(messages, {}); !rendered)
                    CHECK_FALSE(rendered.error().message.empty());
        }
}
