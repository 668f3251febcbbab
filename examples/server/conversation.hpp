// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/index/chunk.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/session/chat_session.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "chosen_tier.hpp"
#include "options.hpp"

namespace server {

/// The cache, with pages of one codec.
template <class Codec>
using store =
    kvcache::cache<Codec, kvcache::locking::mutex, chosen_tier, kvcache::storage::heap, kvcache::index::chunk>;

/// What a chat does when it is too long.
struct overflow {
    bool slides = false;
    bool forgets = false;
    explicit overflow(const options& with) : slides(with.overflow == "slide"), forgets(with.overflow == "sinks") {}
    [[nodiscard]] std::size_t droppable_turns(std::span<const kvcache::chat_message> messages) const {
        return slides ? kvcache::slide_overflow{}.droppable_turns(messages) : 0;
    }
    [[nodiscard]] std::vector<kvcache::chat_message> without_turns(std::span<const kvcache::chat_message> messages,
                                                                   std::size_t turns) const {
        return kvcache::slide_overflow{}.without_turns(messages, turns);
    }
    [[nodiscard]] std::optional<std::size_t> sinks() const {
        return forgets ? kvcache::sinks_overflow{}.sinks() : std::nullopt;
    }
};

/// A conversation of a tenant.
template <class Codec>
struct conversation {
    conversation(store<Codec>& cache, const kvcache::tenant& of, kvcache::chat_format form, std::size_t context,
                 const options& with)
        : tenant(of), chat(cache, std::move(form), context, {}, overflow(with), of) {}
    conversation(const conversation&) = delete;
    conversation& operator=(const conversation&) = delete;

    kvcache::tenant tenant; // outlives what belongs to it
    kvcache::chat_session<store<Codec>, overflow> chat;
};

} // namespace server
