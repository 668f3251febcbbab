// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>
#include <kvcache/session/chat_session.hpp>
#include <kvcache/session/engine.hpp>
#include <kvcache/session/session_table.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/guarded.hpp"
#include "../support/model_directory.hpp"
#include "available_memory.hpp"
#include "chosen_tier.hpp"
#include "latencies.hpp"
#include "options.hpp"
#include "ready_memory.hpp"

namespace server {

using store = kvcache::cache<kvcache::codec::f32, kvcache::locking::mutex, chosen_tier, kvcache::storage::heap>;

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
using session = kvcache::chat_session<store, overflow>;

/// A model, its cache, its conversations, and the computing thread.
class host {
public:
    /// Errors: those of the model directory, and of the tier; more memory for pages than there is.
    [[nodiscard]] static kvcache::result<std::unique_ptr<host>> open(const options& with) {
        auto loaded = support::open_model(with.model, with.packed_cache, with.int8);
        if (!loaded)
            return loaded.error();
        auto words = kvcache::tokenizer::open(with.model);
        if (!words)
            return words.error();
        const auto tier = read_chosen_tier(with.tier);
        if (!tier)
            return tier.error();
        // Pages are allocated as they are needed: without this check the system would end the server later.
        if (const auto available = available_memory() >> 20; with.cache_mib > available)
            return kvcache::error{kvcache::error_code::out_of_memory, "--cache-mib",
                                  "--cache-mib: " + std::to_string(with.cache_mib) + " MiB are asked for pages, and " +
                                      std::to_string(available) + " MiB of memory are available"};
        std::unique_ptr<host> made(new host(with, std::move(*loaded), *words, *tier));
        if (auto usable = made->cache.tier().status(); !usable)
            return usable.error();
        return made;
    }

    ~host() { stop(); }

    /// Cancels all running requests.
    void stop() {
        computing_.request_stop();
        if (computing_.joinable())
            computing_.join();
    }

    /// Returns a factory of conversations. Requires: `form` is set.
    [[nodiscard]] auto make_session() {
        return [this] { return std::make_unique<session>(cache, *form, context(), std::string(), overflow(with)); };
    }

    /// Maximum tokens of a prompt and its answer: what the model has positions for, and the pages room. Two pages are
    /// left for the copies of partial pages that a turn makes.
    [[nodiscard]] std::size_t context() const {
        const std::size_t pages = cache.stats().pages;
        const std::size_t room = (pages - std::min<std::size_t>(pages, 2)) * with.page;
        return std::min({with.context == 0 ? model.max_positions() : with.context, model.max_positions(), room});
    }

    options with;
    std::string name;
    kvcache::transformer model;
    kvcache::tokenizer words;
    std::optional<kvcache::chat_format> form; ///< Empty for a model without a usable chat template.
    std::string no_form;                      ///< The reason, if `form` is empty.
    ready_memory memory;
    store cache;
    kvcache::digest fingerprint;
    kvcache::session_table<session> sessions;
    latencies times;

private:
    host(options o, kvcache::loaded_model loaded, kvcache::tokenizer speaks, const chosen_tier& tier)
        : with(std::move(o)),
          name(!with.name.empty() ? with.name : std::filesystem::canonical(with.model).filename().string()),
          model(std::move(loaded.model)),
          words(std::move(speaks)),
          cache(kvcache::make_cache(identity(loaded.weights), model.shape(with.page), {.bytes = with.cache_mib << 20},
                                    kvcache::locking::mutex{}, tier, kvcache::storage::heap{&memory, true})),
          fingerprint(kvcache::digest_of(cache.id())),
          // Idle conversations hold at most three quarters of the pages.
          sessions({.sessions = with.sessions, .bytes = (with.cache_mib << 20) / 4 * 3}),
          threads_(with.threads),
          pipeline_(cache, model, threads_, with.rows),
          engine_(cache, model, pipeline_, {.rows = with.rows, .lanes = with.lanes, .waiting = with.queue}) {
        if (auto read = kvcache::chat_template::open(words, "default"))
            form.emplace(kvcache::chat_format{words, std::move(*read)});
        else
            no_form = read.error().message;
        {
            auto nothing = cache.open(); // allocates the first pages before the first request
            (void)cache.reserve(nothing, 1);
        }
        engine_.set_relief([this] { return sessions.evict(); });
        computing_ = std::jthread([this](const std::stop_token& stop) {
            const auto run = [&] {
                engine_.run(stop);
                return 0;
            };
            const auto close = [&] { // clients are told, and further requests refused
                engine_.close();
                return 0;
            };
            if (support::guarded("server: computing", run) != 0)
                (void)support::guarded("server: computing", close);
        });
    }

    [[nodiscard]] kvcache::identity identity(kvcache::digest weights) const {
        auto id = model.id(weights);
        id.tokenizer = words.digest();
        return id;
    }

    kvcache::thread_pool threads_;
    kvcache::pipeline<store, kvcache::transformer> pipeline_;
    kvcache::engine<store, kvcache::transformer> engine_;
    std::jthread computing_;

public:
    [[nodiscard]] auto& engine() noexcept { return engine_; }
};

} // namespace server
