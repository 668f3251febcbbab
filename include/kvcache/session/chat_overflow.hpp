// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/chat_template.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <vector>

namespace kvcache {

/// What a conversation does when it no longer fits the model: shortens the messages by one step, or says that it does
/// not. It is asked until they fit.
template <class P>
concept chat_overflow_policy = requires(const P p, std::vector<chat_message>& messages) {
    { p.shorten(messages) } -> std::same_as<bool>;
};

/// A conversation that is too long is refused, and stays as it is.
struct refuse_overflow {
    [[nodiscard]] bool shorten(std::vector<chat_message>&) const noexcept { return false; }
};

/// The oldest whole turn goes: the first user message and all up to the next. System messages before it stay, and so
/// does the last turn. What is left is computed again, exactly.
struct slide_overflow {
    [[nodiscard]] bool shorten(std::vector<chat_message>& messages) const {
        const auto said = [](const chat_message& m) { return m.role != "system" && m.role != "developer"; };
        const auto first = std::ranges::find_if(messages, said);
        if (first == messages.end())
            return false;
        const auto next =
            std::find_if(first + 1, messages.end(), [](const chat_message& m) { return m.role == "user"; });
        if (next == messages.end())
            return false;
        messages.erase(first, next);
        return true;
    }
};

static_assert(chat_overflow_policy<refuse_overflow> && chat_overflow_policy<slide_overflow>);

} // namespace kvcache
