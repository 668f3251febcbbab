// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/chat_template.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <optional>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

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
    KVCACHE_LAZY [[nodiscard]] bool shorten(std::vector<chat_message>& messages) const {
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

/// A policy under which tokens in the middle may go, with the keys and values of the others as they are: how many first
/// tokens stay then, or none if it does not come to that.
template <class P>
concept drops_tokens = requires(const P p) {
    { p.sinks() } -> std::same_as<std::optional<std::size_t>>;
};

/// The oldest tokens behind the first few go, and nothing is computed again: an approximation, of a model that attends
/// to its first tokens whatever they are (StreamingLLM, Xiao et al. 2024).
struct sinks_overflow {
    std::size_t first = 4; ///< Tokens that stay; as many as the system prompt takes keep that, too.
    [[nodiscard]] bool shorten(std::vector<chat_message>&) const noexcept { return false; }
    [[nodiscard]] std::optional<std::size_t> sinks() const noexcept { return first; }
};

static_assert(chat_overflow_policy<sinks_overflow> && drops_tokens<sinks_overflow>);
static_assert(chat_overflow_policy<refuse_overflow> && chat_overflow_policy<slide_overflow>);

} // namespace kvcache
