// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>

#include <array>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// How GGUF files of byte-level BPE split text before it is encoded: the rules of one `tokenizer.ggml.pre`. Each
/// pattern in turn splits the pieces of the one before: matches and the text between them are pieces.
struct gguf_split {
    std::string_view name = {};
    std::array<std::string_view, 6> patterns = {};
    bool ignore_merges = false; ///< A piece that is a token is that token.
    bool add_bos = false;       ///< Default of tokenizer.ggml.add_bos_token.
};

namespace detail {

/// GPT-2's words.
inline constexpr std::string_view gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
/// Llama 3's words and numbers of up to three digits.
inline constexpr std::string_view llama3_words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Qwen2's: the same with single digits.
inline constexpr std::string_view qwen2_words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Qwen3.5's: marks belong to words.
inline constexpr std::string_view qwen35_words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// GPT-4o's: words by their case with what is after an apostrophe, numbers of up to three digits.
inline constexpr std::string_view gpt4o_words =
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+)"
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|)"
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*)"
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// BLOOM's: what spaces and some signs of many scripts separate.
inline constexpr std::string_view bloom_words = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+";
/// Mistral's Tekken: words by their case, single digits.
inline constexpr std::string_view tekken_words =
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|)"
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// DeepSeek's letters with case, of every script that has any.
inline constexpr std::string_view deepseek_letters =
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943]+";
inline constexpr std::string_view deepseek_signs = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+";
/// Spaces are not of it, for which llama.cpp has one sign.
inline constexpr std::string_view deepseek_cjk = "(?:(?!\\s)[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff])+";

/// DeepSeek V3's words: a sign begins one of ASCII letters. Numbers, and Han and kana, are apart.
inline constexpr std::string_view three_digits = R"(\p{N}{1,3})";
inline constexpr std::string_view han_and_kana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
inline constexpr std::string_view deepseek3_words =
    R"([!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Spark's: the same with new lines one by one.
inline constexpr std::string_view spark_words =
    R"([!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)";
/// Scripts that Youtu keeps apart: Hangul, Chinese signs, Bopomofo, Han and kana.
inline constexpr std::string_view youtu_scripts =
    "[\uac00-\ud7a3\u3131-\u318e]+|"
    "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
    "[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
/// Youtu's words, of any case as llama.cpp reads them, with what is after an apostrophe; single digits.
inline constexpr std::string_view youtu_words =
    R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Aya's: numbers of up to three digits.
inline constexpr std::string_view aya_words =
    R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Granite's embeddings: GPT-4o's with marks in words.
inline constexpr std::string_view granite_words =
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))*((?=[\p{L}\p{M}])([^A-Z]))+)"
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|)"
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))+((?=[\p{L}\p{M}])([^A-Z]))*)"
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Jais 2's: Llama 3's with runs of spaces by powers of two.
inline constexpr std::string_view jais2_words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|)"
    R"(\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
/// EXAONE's mixtures of experts: words may have single spaces in them.
inline constexpr std::string_view exaone_words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
/// Ling's: Qwen2's with one new line each.
inline constexpr std::string_view ling_words =
    R"('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
/// Seed-Coder's: Qwen2's with new lines apart from signs.
inline constexpr std::string_view seed_coder_words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Qwen2's without English contractions.
inline constexpr std::string_view turkish_words =
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// MiniCPM 5's, after its numbers.
inline constexpr std::string_view minicpm5_words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

} // namespace detail

/// The rules by name. They are those of llama.cpp, which writes and reads the names; a file without one has "default".
inline constexpr gguf_split gguf_splits[] = {
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", detail::gpt2_words, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {"gpt-2", {detail::gpt2_words}},
    {"smollm", {R"(\p{N})", detail::gpt2_words}},
    {"llama-bpe", {detail::llama3_words}, true, true},
    {"llama3", {detail::llama3_words}, true, true},
    {"llama-v3", {detail::llama3_words}, true, true},
    {"qwen2", {detail::qwen2_words}},
    {"deepseek-r1-qwen", {detail::qwen2_words}},
    {"deepseek-llm",
     {"[\r\n]", detail::deepseek_letters, detail::deepseek_signs, R"(\s+$)", detail::deepseek_cjk, R"(\p{N}+)"}},
    {"tekken", {detail::tekken_words}, true, true},
    {"lfm2", {detail::llama3_words}, true, true},
    {"falcon3", {detail::llama3_words}, true, true},
    {"falcon-h1", {detail::llama3_words}, true, true},
    {"pixtral", {detail::llama3_words}, true, true},
    {"dbrx", {detail::llama3_words}},
    {"smaug-bpe", {detail::llama3_words}},
    {"glm4", {detail::llama3_words}, true},
    {"glm5", {detail::llama3_words}, true},
    {"chatglm-bpe", {detail::llama3_words}},
    {"stablelm2", {detail::qwen2_words}},
    {"megrez", {detail::qwen2_words}},
    {"hunyuan", {detail::qwen2_words}},
    {"qwen35", {detail::qwen35_words}},
    {"gpt-4o", {detail::gpt4o_words}},
    {"llama4", {detail::gpt4o_words}},
    {"phi-2", {detail::gpt2_words}},
    {"mpt", {detail::gpt2_words}},
    {"olmo", {detail::gpt2_words}},
    {"jais", {detail::gpt2_words}},
    {"trillion", {detail::gpt2_words}},
    {"exaone4", {detail::gpt2_words}},
    {"starcoder", {R"(\p{N})", detail::gpt2_words}},
    {"refact", {R"(\p{N})", detail::gpt2_words}},
    {"command-r", {R"(\p{N})", detail::gpt2_words}},
    {"codeshell", {R"(\p{N})", detail::gpt2_words}},
    {"exaone", {R"(\p{N})", detail::gpt2_words}},
    {"minerva-7b", {R"(\p{N})", detail::gpt2_words}},
    {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", detail::gpt2_words, "[0-9][0-9][0-9]"}},
    {"deepseek-coder", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", detail::deepseek_cjk, R"(\p{N})"}},
    {"bloom", {detail::bloom_words}},
    {"poro-chat", {detail::bloom_words}},
    {"gpt3-finnish", {detail::bloom_words}},
    {"viking", {detail::bloom_words, R"(\p{N})"}},
    {"deepseek-v3", {detail::three_digits, detail::han_and_kana, detail::deepseek3_words}},
    {"hunyuan-dense", {detail::three_digits, detail::han_and_kana, detail::deepseek3_words}},
    {"joyai-llm", {detail::three_digits, detail::han_and_kana, detail::deepseek3_words}},
    {"hy_v4", {detail::three_digits, detail::han_and_kana, detail::deepseek3_words}},
    {"spark2_5", {detail::three_digits, detail::han_and_kana, detail::spark_words, R"(\p{N})"}},
    {"youtu", {detail::youtu_scripts, detail::youtu_words}, true},
    {"tiny_aya", {R"(\d{1,3}(?=(?:\d{3})*(?!\w)))", detail::aya_words}},
    {"cohere2moe", {R"(\d{1,3}(?=(?:\d{3})*(?!\w)))", detail::aya_words}},
    {"minicpm5", {detail::three_digits, detail::minicpm5_words}, true},
    {"midm-2.0", {detail::llama3_words}, true, true},
    {"jina-v5-nano", {detail::llama3_words}, true, true},
    {"jais-2", {detail::jais2_words}},
    {"gigachat", {detail::gpt2_words}},
    {"a.x-4.0", {detail::gpt2_words}},
    {"mellum", {detail::gpt2_words}},
    {"modern-bert", {detail::gpt2_words}},
    {"jina-es", {detail::gpt2_words}},
    {"jina-de", {detail::gpt2_words}},
    {"jina-v2-es", {detail::gpt2_words}},
    {"jina-v2-de", {detail::gpt2_words}},
    {"granite-docling", {detail::gpt2_words}},
    {"mellum2", {R"(\p{N})", detail::gpt2_words}},
    {"kormo", {detail::qwen2_words}},
    {"f2llmv2", {detail::qwen2_words}},
    {"solar-open", {detail::qwen2_words}},
    {"grok-2", {detail::qwen2_words}},
    {"laguna", {"[^\n]+|[\n]+", detail::qwen2_words}},
    {"kanana2", {detail::gpt4o_words}},
    {"talkie", {detail::gpt4o_words}},
    {"minimax-m2", {detail::gpt4o_words}},
    {"granite-embed-multi-97m", {detail::granite_words}, true},
    {"exaone-moe", {detail::exaone_words}},
    {"bailingmoe", {detail::ling_words}},
    {"bailingmoe2", {detail::ling_words}},
    {"llada-moe", {detail::ling_words}},
    {"seed-coder", {detail::seed_coder_words}},
    {"ufakzeka", {detail::turkish_words}},
    {"superbpe", {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"}},
    {"chameleon",
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\t\n]|    |  )", R"(\p{N})",
      R"([\p{P}!-/:-@\[-`{-~])", detail::gpt2_words},
     false,
     true},
};

/// The names of all rules, for an error.
[[nodiscard]] inline std::string list_of_gguf_splits() {
    std::string all;
    for (const gguf_split& one : gguf_splits)
        all += kvcache::detail::joined({all.empty() ? "" : ", ", one.name});
    return all;
}

}}} // namespace kvcache::text
