// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/hash/xxh3.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/session/chat_session.hpp>
#include <kvcache/storage/heap.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/kept_layers.hpp"
#include "chosen_tier.hpp"
#include "options.hpp"

namespace server {

/// The cache.
template <class Layers>
using store =
    support::cache_of<Layers, kvcache::hash::xxh3, kvcache::locking::mutex, chosen_tier, kvcache::storage::heap>;

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
template <class Layers>
struct conversation {
    conversation(store<Layers>& cache, const kvcache::tenant& of, kvcache::chat_format form, std::size_t context,
                 const options& with)
        : tenant(of), chat(cache, std::move(form), context, {}, overflow(with), of) {}
    conversation(const conversation&) = delete;
    conversation& operator=(const conversation&) = delete;

    kvcache::tenant tenant; // outlives what belongs to it
    kvcache::chat_session<store<Layers>, overflow> chat;
};

} // namespace server
