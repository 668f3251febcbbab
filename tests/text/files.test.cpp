// SPDX-License-Identifier: MIT
#include <kvcache/formats/json.hpp>
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
    CHECK(encoded.error().field == "pre_tokenizer.pattern.Regex");
    CHECK(encoded.error().message.find("tokenizer.json") != std::string::npos);
}

TEST_CASE("rules that multiply a text end in an error that names their step") {
    const auto many = [](const std::string& one, std::size_t count) {
        std::string all = one;
        for (std::size_t i = 1; i < count; ++i)
            all += ", " + one;
        return all;
    };
    const std::string doubling = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
    const std::string half =
        R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ")" + std::string(100'000, 'a') + "\"}";
    const std::string prepend = R"({"type": "Prepend", "prepend": ")" + std::string(1'000'000, 'a') + "\"}";
    const std::string bytes = R"({"type": "ByteLevel", "use_regex": false})";
    const std::string metaspace = R"({"type": "Metaspace", "split": false})";
    const auto normalizers = [&](const std::string& steps) {
        return R"("normalizer": {"type": "Sequence", "normalizers": [)" + steps + "]}, ";
    };
    const auto pre_tokenizers = [&](const std::string& steps) {
        return R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [)" + steps + "]}, ";
    };
    const auto field = [](const std::string& part) {
        const auto words = kv::tokenizer::parse("{" + part + R"("model": {"vocab": {"a": 0}, "merges": []}})", {});
        if (!words)
            return words.error().field;
        const auto encoded = words->encode("aaaaaaaa\u00e9   a", {});
        return encoded ? std::string("none") : encoded.error().field;
    };
    CHECK(field(normalizers(many(doubling, 40))) == "normalizer.normalizers[32]");
    CHECK(field(pre_tokenizers(many(bytes, 2000))) == "pre_tokenizer.pretokenizers[16]"); // each has two steps
    CHECK(field(R"("decoder": {"type": "Sequence", "decoders": [)" + many(R"({"type": "Fuse"})", 33) + "]}, ") ==
          "decoder.decoders[32]");
    CHECK(field(normalizers(many(normalizers(doubling).substr(14, normalizers(doubling).size() - 16), 40))) ==
          "normalizer.normalizers[32].normalizers[0]");
    CHECK(field(normalizers(many(doubling, 10))) == "none");
    CHECK(field(normalizers(many(doubling, 32))) == "normalizer.normalizers[16]");
    CHECK(field(normalizers(many(half, 3))) == "normalizer.normalizers[1]");
    CHECK(field(normalizers(many(prepend, 3))) == "normalizer.normalizers[1]");
    CHECK(field(normalizers(many(R"({"type": "ByteLevel"})", 32))) == "normalizer.normalizers[17]");
    CHECK(field(pre_tokenizers(many(bytes, 16))) == "none");
    CHECK(field(pre_tokenizers(R"({"type": "Metaspace"})")) == "none");
}

TEST_CASE("a decoder's rules that multiply a text leave it as it is") {
    std::string steps;
    for (int i = 0; i < 31; ++i)
        steps += R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}, )";
    const auto words = kv::tokenizer::parse(R"({"decoder": {"type": "Sequence", "decoders": [)" + steps +
                                                R"({"type": "Fuse"}]}, "model": {"vocab": {"a": 0}, "merges": []}})",
                                            {});
    REQUIRE(words);
    const auto text = words->decode(tokens({0, 0}), {});
    CHECK(text.size() > 1 << 20);
    CHECK(text.size() < 32 << 20);
    CHECK(text.find_first_not_of('a') == std::string::npos);
}

TEST_CASE("other parts of a file that multiply are refused") {
    std::string ids = "0";
    for (int i = 0; i < 100; ++i)
        ids += ", 0";
    std::string single = R"({"Sequence": {"id": "A"}})";
    for (int i = 0; i < 100; ++i)
        single += R"(, {"SpecialToken": {"id": "x"}})";
    CHECK(refusal("/post_processor", (R"({"type": "TemplateProcessing", "single": [)" + single +
                                      R"(], "special_tokens": {"x": {"ids": [)" + ids + "]}}}")
                                         .c_str())
              .field == "post_processor");
    CHECK(refusal("/model/end_of_word_suffix", ("\"" + std::string(65, 'a') + "\"").c_str()).field ==
          "model.continuing_subword_prefix");
    const auto words = kv::tokenizer::parse(R"({"added_tokens": [{"id": 1, "content": ")" + std::string(100'000, 'a') +
                                                R"(b", "special": true}], "model": {"vocab": {"a": 0}, "merges": []}})",
                                            {});
    REQUIRE(words);
    const auto encoded = words->encode(std::string(50'000, 'a'), {});
    REQUIRE_FALSE(encoded);
    CHECK(encoded.error().field == "added_tokens");
}

TEST_CASE("an object of many keys keeps their order, and finds a key that comes twice") {
    std::string text = "{\"a\": {}";
    for (int i = 0; i < 100'000; ++i)
        text += ", \"" + std::to_string(i) + "\": {\"" + std::to_string(i) + "\": 1}";
    const auto parsed = kv::parse_json(text + "}", "text");
    REQUIRE(parsed);
    REQUIRE(parsed->size() == 100'001);
    CHECK((--parsed->end()).key() == "99999");
    CHECK(kv::parse_json(text + R"(, "7": 1})", "text").error().message.find("\"7\" twice") != std::string::npos);
    CHECK(kv::parse_json(text + R"(, "a": 1})", "text").error().message.find("\"a\" twice") != std::string::npos);
    CHECK(kv::parse_json(R"({"b": 1, "a": 2, "b": 1})", "text").error().message.find("\"b\" twice") !=
          std::string::npos);
}

TEST_CASE("nothing follows a JSON value, not even after a zero byte") {
    using namespace std::string_view_literals;
    for (const auto text : {"{}\0"sv, "{}\0{junk"sv, "\0{}"sv, "{\"a\0\": 1}"sv, "{} {}"sv}) {
        const auto parsed = kv::parse_json(text, "text");
        REQUIRE_FALSE(parsed);
        CHECK(parsed.error().code == kv::error_code::malformed);
    }
    CHECK((*kv::parse_json(R"({"a": "\u0000"})", "text"))["a"] == "\0"sv);
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
            if (const auto chat = kv::chat_template::parse(bytes, {{"bos_token", "<s>"}}))
                if (const auto rendered = chat->render(messages, {}); !rendered)
                    CHECK_FALSE(rendered.error().message.empty());
        }
}
