// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/gguf_header.hpp>
#include <kvcache/text/gguf_splits.hpp>
#include <kvcache/text/json_reader.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::detail {

// What a GGUF file implies by its kind of tokenizer, as tokenizer.json says it.

/// SentencePiece's visible space.
inline constexpr std::string_view visible_space = "\xe2\x96\x81";

/// Pre-tokenizer of byte-level BPE.
KVCACHE_LAZY [[nodiscard]] inline json_document byte_level_pre_tokenizer(const gguf_split& split) {
    json_document steps = json_document::array();
    for (const std::string_view pattern : split.patterns)
        if (!pattern.empty())
            steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

/// Normalizer of SentencePiece: spaces become visible, and one is added before a text if `prefix`.
KVCACHE_LAZY [[nodiscard]] inline json_document sentencepiece_normalizer(bool prefix) {
    json_document steps = json_document::array();
    if (prefix)
        steps.push_back({{"type", "Prepend"}, {"prepend", visible_space}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", visible_space}});
    return {{"type", "Sequence"}, {"normalizers", steps}};
}

/// Decoder of SentencePiece: the inverse, and bytes from their tokens.
KVCACHE_LAZY [[nodiscard]] inline json_document sentencepiece_decoder(bool prefix) {
    json_document steps = json_document::array();
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", visible_space}}}, {"content", " "}});
    steps.push_back({{"type", "ByteFallback"}});
    steps.push_back({{"type", "Fuse"}});
    if (prefix)
        steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1U}, {"stop", 0U}});
    return {{"type", "Sequence"}, {"decoders", steps}};
}

/// Returns whether the control tokens include the white space after them: those of Phi-3, which only its name tells.
KVCACHE_LAZY [[nodiscard]] inline bool swallows_spaces(const gguf_header& header) {
    const gguf_value* value = header.find("general.name");
    std::string name(value != nullptr ? value->text().value_or(std::string_view()) : std::string_view());
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return name.find("phi-3") != name.npos || name.find("phi3") != name.npos;
}

}}} // namespace kvcache::text::detail
