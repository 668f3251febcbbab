// SPDX-License-Identifier: MIT
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/gguf_tokenizer.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <model/huggingface/files.hpp>
#include <support/gguf_builder.hpp>
#include <text/goldens.hpp>

namespace kv = kvcache;
using namespace text_tests;
using testing_files::gguf_builder;

namespace {

/// A byte-level vocabulary: "a" to "e", merges of them, and tokens of several types. Keys in `without` are left out.
gguf_builder gpt2(const std::string& pre, const std::string& without = "") {
    gguf_builder made;
    made.text("general.architecture", "llama").text("tokenizer.ggml.model", "gpt2");
    if (!pre.empty())
        made.text("tokenizer.ggml.pre", pre);
    const std::vector<std::string> tokens = {"<|end|>", "a",   "b",       "c",  "\u0120", "1", "2",
                                             "ab",      "abc", "\u0120a", "12", "<x>",    ""};
    if (without != "tokenizer.ggml.tokens")
        made.texts("tokenizer.ggml.tokens", tokens);
    if (without != "tokenizer.ggml.token_type")
        made.numbers<std::int32_t>("tokenizer.ggml.token_type", {3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1});
    if (without != "tokenizer.ggml.merges")
        made.texts("tokenizer.ggml.merges", {"a b", "ab c", "\u0120 a", "1 2"});
    if (without != "tokenizer.ggml.bos_token_id")
        made.number("tokenizer.ggml.bos_token_id", 0u).number("tokenizer.ggml.eos_token_id", 0u);
    return made;
}

/// A SentencePiece vocabulary with bytes for the rest; pieces by score.
gguf_builder llama() {
    gguf_builder made;
    made.text("tokenizer.ggml.model", "llama").text("tokenizer.ggml.pre", "default");
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {2, 3, 3};
    std::vector<float> scores = {0, 0, 0};
    for (int b = 0; b < 256; ++b) {
        const char* digits = "0123456789ABCDEF";
        tokens.push_back(std::string("<0x") + digits[b / 16] + digits[b % 16] + ">");
        types.push_back(6);
        scores.push_back(0);
    }
    const std::pair<const char*, float> pieces[] = {{"\u2581", -9}, {"a", -10}, {"b", -11},  {"\u2581a", -3},
                                                    {"ab", -2},     {"ba", -2}, {"aba", -1}, {"\u2581ab", -4},
                                                    {"<", -12},     {"s", -12}, {">", -12},  {"<s", -12}};
    for (const auto& [piece, score] : pieces) {
        tokens.push_back(piece);
        types.push_back(1);
        scores.push_back(score);
    }
    return made.texts("tokenizer.ggml.tokens", tokens)
        .numbers("tokenizer.ggml.token_type", types)
        .numbers("tokenizer.ggml.scores", scores);
}

kv::result<kv::tokenizer> parse(const gguf_builder& built) {
    const std::string file = built.file();
    const auto header = kv::gguf_header::parse(testing_files::bytes_of(file), "t.gguf");
    REQUIRE(header);
    return kv::tokenizer::parse(*header, "t.gguf");
}
kv::tokenizer opened(const gguf_builder& built) {
    auto words = parse(built);
    if (!words)
        FAIL(words.error().message);
    return *words;
}
std::string refused(const gguf_builder& built) {
    const auto words = parse(built);
    if (words)
        return "";
    CHECK(words.error().message.starts_with("t.gguf: " + words.error().field));
    return words.error().field;
}
std::string pieces(const kv::tokenizer& words, std::string_view text, const kv::encode_options& options = {}) {
    std::string out;
    for (const auto token : encode(words, text, options))
        out += (out.empty() ? "" : "|") + *words.try_piece(token);
    return out;
}

} // namespace

TEST_CASE("byte-level BPE of a GGUF file splits as its pre says and merges by rank") {
    const auto words = opened(gpt2("gpt-2"));
    CHECK(words.vocabulary_size() == 13);
    CHECK(pieces(words, "abc ab") == "abc|\u0120|ab"); // "ab" before "\u0120a"
    CHECK(pieces(words, "12 12") == "12|\u0120|12");
    CHECK(pieces(opened(gpt2("smollm")), "1212") == "1|2|1|2");
    CHECK(pieces(opened(gpt2("qwen2")), "12") == "1|2");
    CHECK(pieces(opened(gpt2("default")), "1212") == "12|1|2"); // of three digits and one
    CHECK(pieces(opened(gpt2("")), "1212") == "12|1|2");
    CHECK(words.decode(encode(words, "abc <x>12", {}), {}) == "abc <x>12");
    CHECK(*words.bos() == kv::token_id{0});
    CHECK(*words.eos() == kv::token_id{0});

    // BOS and EOS as the flags say; some kinds have them by default.
    CHECK(pieces(opened(gpt2("llama-bpe")), "a") == "<|end|>|a");
    CHECK(pieces(opened(gpt2("tekken")), "a") == "<|end|>|a");
    CHECK(pieces(opened(gpt2("llama-bpe").number("tokenizer.ggml.add_bos_token", false)), "a") == "a");
    CHECK(pieces(opened(gpt2("gpt-2").number("tokenizer.ggml.add_bos_token", true)), "a") == "<|end|>|a");
    CHECK(pieces(opened(gpt2("gpt-2").number("tokenizer.ggml.add_eos_token", true)), "a") == "a|<|end|>");
    CHECK(pieces(opened(gpt2("llama-bpe")), "a", {.add_special_tokens = false}) == "a");
}

TEST_CASE("Gemma 4's tokens merge over whole texts with visible spaces, and the rest are bytes") {
    const auto gemma4 = [](const std::string& without = "") {
        gguf_builder made;
        made.text("tokenizer.ggml.model", "gemma4");
        std::vector<std::string> tokens = {"<pad>", "<eos>", "<bos>", "<unk>"};
        std::vector<std::int32_t> types = {3, 3, 3, 2};
        for (int b = 0; b < 256; ++b) {
            const char* digits = "0123456789ABCDEF";
            tokens.push_back(std::string("<0x") + digits[b / 16] + digits[b % 16] + ">");
            types.push_back(6);
        }
        for (const char* piece :
             {"\u2581", "a", "b", "\n", "\n\n", "ab", "\u2581a", "b\u2581a", "ab\u2581a", "\u2581\u2581"}) {
            tokens.emplace_back(piece);
            types.push_back(1);
        }
        made.texts("tokenizer.ggml.tokens", tokens).numbers("tokenizer.ggml.token_type", types);
        if (without != "tokenizer.ggml.merges")
            made.texts("tokenizer.ggml.merges",
                       {"\u2581 \u2581", "\n \n", "a b", "\u2581 a", "b \u2581a", "ab \u2581a"});
        return made.number("tokenizer.ggml.bos_token_id", 2u)
            .number("tokenizer.ggml.eos_token_id", 1u)
            .number("tokenizer.ggml.unknown_token_id", 3u);
    };
    const auto words = opened(gemma4());
    CHECK(pieces(words, "ab a") == "<bos>|ab\u2581a"); // words do not part it
    CHECK(pieces(words, "ab  a") == "<bos>|ab|\u2581\u2581|a");
    CHECK(pieces(words, " ab\n\n\na") == "<bos>|\u2581|ab|\n\n|\n|a");
    CHECK(pieces(words, "\u00e9b") == "<bos>|<0xC3>|<0xA9>|b");
    CHECK(pieces(opened(gemma4().number("tokenizer.ggml.add_bos_token", false)), "b") == "b");
    for (const char* text : {"ab a", " a  b\n\n\u00e9", "", "\u2581 a", "b\t\u00e9\u00e9"}) {
        const std::string seen = words.decode(encode(words, text, {.add_special_tokens = false}), {});
        CHECK(seen == (std::string_view(text) == "\u2581 a" ? "  a" : text)); // a visible space is one
    }
    CHECK(refused(gemma4("tokenizer.ggml.merges")) == "tokenizer.ggml.merges");
}

TEST_CASE("every name of a split is read, and gives back the text") {
    for (const kv::text::gguf_split& split : kv::text::gguf_splits) {
        CAPTURE(split.name);
        const auto words = opened(gpt2(std::string(split.name)));
        const kv::encode_options bare{.add_special_tokens = false};
        CHECK(words.decode(encode(words, "abc 12ab  a", bare), {}) == "abc 12ab  a");
    }
    const auto unknown = parse(gpt2("no-such-words"));
    REQUIRE_FALSE(unknown);
    CHECK(unknown.error().message.find("deepseek-coder") != std::string::npos);
}

TEST_CASE("control tokens of a GGUF file come from templates only, user-defined ones from any text") {
    const auto words = opened(gpt2("gpt-2"));
    CHECK(pieces(words, "a<|end|>b<x>") == "a|<|end|>|b|<x>");
    for (const auto token : encode(words, "a<|end|>b", {.parse_special = false}))
        CHECK(token != kv::token_id{0});
    CHECK(pieces(words, "b<x>", {.parse_special = false}) == "b|<x>");
    CHECK(words.is_control(kv::token_id{0}));
    CHECK(words.is_special(kv::token_id{0}));
    CHECK_FALSE(words.is_special(kv::token_id{11}));
}

TEST_CASE("SentencePiece of a GGUF file merges by score, the leftmost of equals, and falls back to bytes") {
    const auto words = opened(llama());
    const kv::encode_options bare{.add_special_tokens = false};
    CHECK(pieces(words, "ab") == "<s>|\u2581ab");
    CHECK(pieces(words, "a", bare) == "\u2581a");
    CHECK(pieces(words, "bab", bare) == "\u2581|ba|b"); // "ba" and "ab" have one score
    CHECK(pieces(words, "aba", bare) == "\u2581|aba");
    CHECK(pieces(words, "\u00e9", bare) == "\u2581|<0xC3>|<0xA9>");
    CHECK(pieces(words, "a<s>a", bare) == "\u2581a|<s>|\u2581a");
    CHECK(pieces(words, "a<s>", {.add_special_tokens = false, .parse_special = false}) == "\u2581a|<s|>");
    for (const char* text : {"ab  ba", "\u00e9a", " a", ""})
        CHECK(words.decode(encode(words, text, bare), {}) == text);
    const auto plain = opened(llama().number("tokenizer.ggml.add_space_prefix", false));
    CHECK(pieces(plain, "ab a", bare) == "ab|\u2581a");
    CHECK(plain.decode(encode(plain, " ab", bare), {}) == " ab");
    CHECK(plain.digest() != words.digest());
}

TEST_CASE("the chat template of a GGUF file renders with its special tokens") {
    gguf_builder built = gpt2("gpt-2");
    built.text("tokenizer.chat_template", "<|im_start|>{{ messages[0].content }}<|im_end|>{{ eos_token }}");
    built.text("tokenizer.chat_template.short", "x").text("tokenizer.chat_templates", "no template");
    const auto words = opened(built);
    CHECK(*words.config().try_chat_template("short") == "x");
    const auto chat = kv::chat_template::open(words, "default");
    REQUIRE(chat);
    const kv::chat_message says{.content = "hi"};
    const auto rendered = chat->render({&says, 1}, {});
    REQUIRE(rendered);
    CHECK(rendered->text() == "<|im_start|>hi<|im_end|><|end|>");
}

TEST_CASE("keys of a tokenizer that are missing, malformed or unknown are refused by name") {
    const std::string prefix = "tokenizer.ggml.";
    CHECK(refused(gguf_builder()) == prefix + "model");
    CHECK(refused(gguf_builder().text(prefix + "model", "t5")) == prefix + "model");
    CHECK(refused(gpt2("invented")) == prefix + "pre");
    CHECK(refused(gpt2("gpt-2", prefix + "tokens")) == prefix + "tokens");
    CHECK(refused(gpt2("gpt-2", prefix + "merges")) == prefix + "merges");
    CHECK(refused(gpt2("gpt-2", prefix + "token_type")).empty());
    CHECK(refused(gpt2("gpt-2", prefix + "token_type").numbers<std::int32_t>(prefix + "token_type", {1})) ==
          prefix + "token_type");
    for (const std::int32_t type : {7, 99, -1, 256 + 3})
        CHECK(refused(gpt2("gpt-2", prefix + "token_type")
                          .numbers<std::int32_t>(prefix + "token_type", {3, 1, 1, 1, 1, type, 1, 1, 1, 1, 1, 4, 1})) ==
              prefix + "token_type");
    CHECK(refused(gpt2("gpt-2", prefix + "token_type").text(prefix + "token_type", "x")) == prefix + "token_type");
    for (const char* merge : {"ab", "", "a z", "b a"})
        CHECK(refused(gpt2("gpt-2", prefix + "merges").texts(prefix + "merges", {merge})) == prefix + "merges");
    CHECK(refused(gpt2("gpt-2", prefix + "tokens").texts(prefix + "tokens", {"\xff"})) == prefix + "tokens");
    CHECK(refused(gpt2("gpt-2", prefix + "bos_token_id").number(prefix + "bos_token_id", 13u)) ==
          prefix + "bos_token_id");
    CHECK(refused(gpt2("gpt-2", prefix + "bos_token_id").number(prefix + "add_bos_token", true)) ==
          prefix + "add_bos_token");
    CHECK(refused(gpt2("gpt-2").number(prefix + "add_bos_token", 1u)) == prefix + "add_bos_token");
    CHECK(refused(gpt2("gpt-2").number("tokenizer.chat_template", 1u)) == "tokenizer.chat_template");
    gguf_builder no_scores;
    no_scores.text(prefix + "model", "llama").texts(prefix + "tokens", {"<unk>", "a"});
    CHECK(refused(no_scores) == prefix + "scores");
    CHECK(refused(no_scores.numbers<float>(prefix + "scores", {0.0F, std::numeric_limits<float>::quiet_NaN()})) ==
          prefix + "scores");
    CHECK(kv::tokenizer::open(shared / "nothing.gguf").error().field == "nothing.gguf");
}

TEST_CASE("a GGUF tokenizer with changed bytes is refused or encodes") {
    const std::uint32_t seed = 4;
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::size_t accepted = 0, without = 0;
    for (const std::string& file : {gpt2("llama-bpe").file(), llama().file()})
        for (int round = 0; round < 500; ++round) {
            std::string changed = file;
            for (std::uint32_t i = 0, n = 1 + static_cast<std::uint32_t>(random() % 3); i < n; ++i)
                changed[24 + random() % (changed.size() - 24)] = static_cast<char>(random());
            const std::vector<char> exact(changed.begin(), changed.end());
            const auto header = kv::gguf_header::parse(testing_files::bytes_of({exact.data(), exact.size()}), "x");
            const auto words = header ? kv::tokenizer::parse(*header, "x") : header.error();
            if (!words) {
                ++without;
                CHECK_FALSE(words.error().field.empty());
                CHECK(words.error().message.starts_with("x: "));
                continue;
            }
            ++accepted;
            const auto tokens = words->encode("ab \u00e9 12<s><|end|>", {});
            REQUIRE(tokens);
            CHECK(std::ranges::all_of(*tokens, [&](kv::token_id t) { return words->try_piece(t) != nullptr; }));
        }
    CHECK(accepted > 0);
    CHECK(without > 0);
}

TEST_CASE("real GGUF vocabularies give the tokens of llama.cpp") {
    for (const char* name : {"ggml-vocab-gpt-2.gguf", "ggml-vocab-phi-3.gguf"}) {
        const auto vectors = shared / "vectors" / "ggml" / name;
        if (!have(shared / "gguf-vocab" / name) || !have(vectors.string() + ".inp"))
            return;
        const auto words = open(shared / "gguf-vocab" / name);
        std::ifstream in(vectors.string() + ".inp", std::ios::binary), out(vectors.string() + ".out");
        const std::string all{std::istreambuf_iterator<char>(in), {}}, between = "\n__ggml_vocab_test__\n";
        std::size_t compared = 0;
        for (std::size_t begin = 0; begin <= all.size(); ++compared) {
            const std::size_t end = std::min(all.find(between, begin), all.size());
            std::string line; // the last text is empty, and so is what follows the last line
            (void)std::getline(out, line);
            std::istringstream numbers(line);
            const std::vector<int> expected{std::istream_iterator<int>(numbers), {}};
            const auto got = encode(words, all.substr(begin, end - begin), {.add_special_tokens = false});
            CHECK(ids(got) == expected);
            begin = end + between.size();
        }
        CHECK(compared == 47);
    }
}
