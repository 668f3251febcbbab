// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/json.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>

namespace text_tests {

/// The small tokenizers and expected values that tools/goldens/tokenizers.py makes.
inline const std::filesystem::path goldens = test_folders::project() / "tests" / "data" / "text";
/// Real data, which may be missing.
inline const std::filesystem::path shared = test_folders::data();

/// Returns whether real data is present; prints a message if not.
inline bool have(const std::filesystem::path& path) {
    if (std::filesystem::exists(path))
        return true;
    std::cout << "SKIPPED: " << path.string() << " is missing\n";
    return false;
}

inline kvcache::tokenizer open(const std::filesystem::path& directory) {
    const auto opened = kvcache::tokenizer::open(directory);
    if (!opened)
        FAIL(directory.string() << ": " << opened.error().field << ": " << opened.error().message);
    return *opened;
}

inline kvcache::json read(const std::filesystem::path& file) {
    const auto opened = kvcache::read_json(file);
    if (!opened)
        FAIL(opened.error().message);
    return *opened;
}

inline std::vector<int> ids(const std::vector<kvcache::token_id>& tokens) {
    std::vector<int> out;
    for (const auto t : tokens)
        out.push_back(kvcache::index_of(t));
    return out;
}

inline std::vector<kvcache::token_id> tokens(const std::vector<int>& numbers) {
    std::vector<kvcache::token_id> out;
    for (const int n : numbers)
        out.push_back(kvcache::token_id{n});
    return out;
}

inline std::vector<kvcache::token_id> encode(const kvcache::tokenizer& words, std::string_view text,
                                             const kvcache::encode_options& options) {
    auto encoded = words.encode(text, options);
    if (!encoded)
        FAIL(encoded.error().field << ": " << encoded.error().message);
    return *encoded;
}

} // namespace text_tests
