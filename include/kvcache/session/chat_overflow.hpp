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

/// What a conversation does when it does not fit into the context. shorten() removes messages in one step, or returns
/// false if it cannot. It is called until the messages fit.
template <class P>
concept chat_overflow_policy = requires(const P p, std::vector<chat_message>& messages) {
    { p.shorten(messages) } -> std::same_as<bool>;
};

/// Refuses a conversation that is too long, and leaves it unchanged.
struct refuse_overflow {
    [[nodiscard]] bool shorten(std::vector<chat_message>&) const noexcept { return false; }
};

/// Removes the oldest whole turn: the first user message and everything up to the next one. Earlier system messages
/// and the last turn stay. The remaining tokens are recomputed exactly.
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

/// A policy that may drop tokens in the middle and keep the keys and values of the others unchanged. sinks() is the
/// number of first tokens to keep, or nothing if no token may be dropped.
template <class P>
concept drops_tokens = requires(const P p) {
    { p.sinks() } -> std::same_as<std::optional<std::size_t>>;
};

/// Drops the oldest tokens after the first few and recomputes nothing. This is an approximation for models that
/// attend to their first tokens whatever those are (StreamingLLM, Xiao et al. 2024).
struct sinks_overflow {
    std::size_t first = 4; ///< Tokens to keep; the length of the system prompt keeps that as well.
    [[nodiscard]] bool shorten(std::vector<chat_message>&) const noexcept { return false; }
    [[nodiscard]] std::optional<std::size_t> sinks() const noexcept { return first; }
};

static_assert(chat_overflow_policy<sinks_overflow> && drops_tokens<sinks_overflow>);
static_assert(chat_overflow_policy<refuse_overflow> && chat_overflow_policy<slide_overflow>);

} // namespace kvcache
