// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/text/unicode.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// The 256 characters that represent bytes in byte-level tokenizers. A printable Latin-1 byte represents itself; the
/// others map to U+0100 and up, in order.
struct byte_alphabet {
    std::array<char32_t, 256> character_of{};
    std::array<std::int16_t, 0x144> byte_of{}; ///< -1 if the character represents no byte.

    constexpr byte_alphabet() {
        byte_of.fill(-1);
        char32_t next = 0x100;
        for (std::size_t b = 0; b < 256; ++b) {
            const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
            character_of[b] = printable ? static_cast<char32_t>(b) : next++;
            byte_of[character_of[b]] = static_cast<std::int16_t>(b);
        }
    }
};

/// The only byte alphabet, computed at compile time.
inline constexpr byte_alphabet the_byte_alphabet;

/// Appends the characters that represent `bytes`.
KVCACHE_LAZY inline void append_byte_characters(std::string& out, std::string_view bytes) {
    for (const char b : bytes)
        append_utf8(out, the_byte_alphabet.character_of[static_cast<unsigned char>(b)]);
}

/// Appends the bytes that the characters of `token` represent. A token with any other character is appended
/// unchanged.
KVCACHE_LAZY inline void append_written_bytes(std::string& out, std::string_view token) {
    const std::size_t before = out.size();
    for (std::size_t i = 0; i < token.size();) {
        const auto c = code_point_at(token, i);
        const std::int16_t byte =
            c.value < the_byte_alphabet.byte_of.size() ? the_byte_alphabet.byte_of[c.value] : std::int16_t{-1};
        if (byte < 0) {
            out.resize(before);
            out.append(token);
            return;
        }
        out.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
        i += c.bytes;
    }
}

}}} // namespace kvcache::text
