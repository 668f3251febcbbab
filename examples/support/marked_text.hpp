// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/chat_template.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace support {

/// A part of a message that is to be reused as a chunk.
struct marked_part {
    std::size_t message = 0;
    std::size_t first = 0, bytes = 0; ///< In the content of the message.
};

/// Cuts messages at their marked parts, so that the tokens of a part do not depend on what stands around it. Returns
/// the text at which they are cut (chat_options::cut), which occurs in no message.
[[nodiscard]] inline std::string cut_at_marks(std::vector<kvcache::chat_message>& messages,
                                              const std::vector<marked_part>& marked) {
    std::string cut;
    for (unsigned code = 0x80; code <= 0xbf; ++code) { // U+E000 to U+E03F, for private use
        cut = {'\xee', '\x80', static_cast<char>(code)};
        if (std::ranges::none_of(messages,
                                 [&](const auto& each) { return each.content.find(cut) != std::string::npos; }))
            break;
    }
    for (auto part = marked.rbegin(); part != marked.rend(); ++part) { // positions before it stay
        std::string& content = messages[part->message].content;
        content.insert(part->first + part->bytes, cut);
        content.insert(part->first, cut);
    }
    return cut;
}

} // namespace support
