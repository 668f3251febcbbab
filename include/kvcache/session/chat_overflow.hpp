// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/text/chat_template.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What a conversation does when it does not fit into the context: droppable_turns() is the number of its oldest turns
/// that may be dropped, and without_turns() the messages without the first `turns` of them.
template <class P>
concept chat_overflow_policy = requires(const P p, std::span<const chat_message> messages, std::size_t turns) {
    { p.droppable_turns(messages) } -> std::same_as<std::size_t>;
    { p.without_turns(messages, turns) } -> std::same_as<std::vector<chat_message>>;
};

/// Refuses a conversation that is too long, and leaves it unchanged.
struct refuse_overflow {
    [[nodiscard]] std::size_t droppable_turns(std::span<const chat_message>) const noexcept { return 0; }
    [[nodiscard]] std::vector<chat_message> without_turns(std::span<const chat_message> messages, std::size_t) const {
        return {messages.begin(), messages.end()};
    }
};

/// Drops the oldest whole turns: each begins with a user message, and the first one with the first message that is not
/// of the system. Earlier system messages and the last turn stay. The remaining tokens are recomputed exactly.
struct slide_overflow {
    KVCACHE_LAZY [[nodiscard]] std::size_t droppable_turns(std::span<const chat_message> messages) const {
        const auto first = begin_of_turns(messages);
        return first == messages.end() ? 0
                                       : static_cast<std::size_t>(std::count_if(first + 1, messages.end(), is_user));
    }

    /// Requires: turns <= droppable_turns(messages). Cost: one pass; only the messages that stay are copied.
    KVCACHE_LAZY [[nodiscard]] std::vector<chat_message> without_turns(std::span<const chat_message> messages,
                                                                       std::size_t turns) const {
        const auto first = begin_of_turns(messages);
        auto next = first;
        for (; turns > 0; --turns)
            next = std::find_if(next + 1, messages.end(), is_user);
        std::vector<chat_message> kept(messages.begin(), first);
        kept.insert(kept.end(), next, messages.end());
        return kept;
    }

private:
    [[nodiscard]] static bool is_user(const chat_message& m) noexcept { return m.role == "user"; }
    KVCACHE_LAZY [[nodiscard]] static std::span<const chat_message>::iterator
    begin_of_turns(std::span<const chat_message> messages) {
        return ranges::find_if(messages,
                               [](const chat_message& m) { return m.role != "system" && m.role != "developer"; });
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
struct sinks_overflow : refuse_overflow {
    std::size_t first = 4; ///< Tokens to keep; the length of the system prompt keeps that as well.
    [[nodiscard]] std::optional<std::size_t> sinks() const noexcept { return first; }
};

static_assert(chat_overflow_policy<sinks_overflow> && drops_tokens<sinks_overflow>);
static_assert(chat_overflow_policy<refuse_overflow> && chat_overflow_policy<slide_overflow>);

}} // namespace kvcache
