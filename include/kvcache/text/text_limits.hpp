// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/joined.hpp>
#include <kvcache/text/json_reader.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

// Limits of the rules in a tokenizer.json, so that a hostile file costs an error and not the machine.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// The longest text that the steps of a normalizer, or of a pre-tokenizer, may make from a text of `bytes` bytes. NFD
/// makes Hangul three times as long, the byte alphabet any text at most twice.
[[nodiscard]] constexpr std::size_t longest_from(std::size_t bytes) noexcept {
    constexpr std::size_t most = std::numeric_limits<std::int32_t>::max(); // symbols of a piece are counted in 32 bits
    return bytes > most / 8 ? most : 4 * bytes + (std::size_t{1} << 20);
}

/// The error of a step that makes too long a text from one of `bytes` bytes. `field` is the path of the step.
KVCACHE_LAZY [[nodiscard]] error too_long(const std::string& field, std::size_t bytes) {
    return {
        error_code::out_of_range, field,
        kvcache::detail::joined({"this step of tokenizer.json makes more than ", std::to_string(longest_from(bytes)),
                                 " bytes from a text of ", std::to_string(bytes)})};
}

/// Refuses a sequence of more steps than any real tokenizer has. `steps` is their number without this one.
KVCACHE_LAZY void check_steps(const json_reader& at, std::size_t steps) {
    constexpr std::size_t most = 32;
    if (steps >= most)
        at.refuse(error_code::out_of_range, "",
                  {"is a step too many; tokenizer.json may have ", std::to_string(most), " in a sequence"});
}

}}} // namespace kvcache::text
