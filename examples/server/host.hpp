// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/session/engine.hpp>
#include <kvcache/session/session_table.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/guarded.hpp"
#include "../support/local_time.hpp"
#include "../support/model_directory.hpp"
#include "api_keys.hpp"
#include "available_memory.hpp"
#include "chosen_tier.hpp"
#include "conversation.hpp"
#include "draft_model.hpp"
#include "ended_answers.hpp"
#include "latencies.hpp"
#include "options.hpp"
#include "preparation.hpp"
#include "ready_memory.hpp"

namespace server {

/// Name of a model for clients: that of its directory, or of its GGUF file without the extension.
inline std::string name_of(const std::filesystem::path& model) {
    return (model.extension() == ".gguf" ? model.stem() : model.filename()).string();
}

/// A model, its cache, its conversations, and the computing thread. `Layers`: what the cache keeps (kept_layers.hpp).
template <class Layers>
class host {
public:
    /// Errors: those of the model directory, and of the tier; more memory for pages than there is.
    [[nodiscard]] static kvcache::result<std::unique_ptr<host>> open(const options& with, kvcache::loaded_model loaded,
                                                                     const Layers& layers) {
        auto words = kvcache::tokenizer::open(with.model);
        if (!words)
            return words.error();
        const auto tier = read_chosen_tier(with.tier, with.tier_secret_file);
        if (!tier)
            return tier.error();
        auto keys = api_keys::read(with);
        if (!keys)
            return keys.error();
        // Pages are allocated as they are needed: without this check the system would end the server later.
        if (const auto available = available_memory() >> 20; with.cache_mib > available)
            return kvcache::error{kvcache::error_code::out_of_memory, "--cache-mib",
                                  "--cache-mib: " + std::to_string(with.cache_mib) + " MiB are asked for pages, and " +
                                      std::to_string(available) + " MiB of memory are available"};
        std::unique_ptr<draft_model> drafts;
        if (!with.draft_model.empty()) {
            auto opened = draft_model::open(with, *words);
            if (!opened)
                return opened.error();
            drafts = std::move(*opened);
        }
        std::unique_ptr<host> made(new host(with, std::move(loaded), *words, *tier, layers, std::move(drafts)));
        made->keys = std::move(*keys);
        if (made->context() < 2)
            return kvcache::error{kvcache::error_code::out_of_memory, "--cache-mib",
                                  "--cache-mib: there is room for " + std::to_string(made->cache.stats().pages) +
                                      " pages, and a prompt needs more"};
        if (auto usable = say_faults(made->cache.tier()); !usable)
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

    /// Returns a factory of a tenant's conversations. Requires: `form` is set.
    [[nodiscard]] auto make_conversation(const kvcache::tenant& of) {
        return [this, of] { return std::make_unique<conversation<Layers>>(cache, of, *form, context(), with); };
    }

    /// Returns what a request reuses: the pages of its key and its salt. Without either, and of its key alone with
    /// --share-prefixes, it is what all share. Errors: out_of_range, if there are too many tenants.
    [[nodiscard]] kvcache::result<kvcache::tenant> tenant_of(const http_request& in, const std::string& cache_salt) {
        std::string salt;
        if (const auto key = keys.of(in); key && !with.share_prefixes)
            salt = "key " + to_string(*key);
        if (!cache_salt.empty())
            salt += " salt " + cache_salt;
        if (salt.empty())
            return shared;
        return cache.open_tenant(kvcache::tenant_salt(std::move(salt)), std::numeric_limits<std::size_t>::max());
    }

    /// Whose request it is: that of a key. Without keys all requests are of one client.
    [[nodiscard]] std::uint64_t client_of(const http_request& in) const {
        std::uint64_t client = 0;
        if (const auto key = keys.of(in))
            std::memcpy(&client, key->bytes.data(), sizeof client);
        return client;
    }

    /// When the first token of a request is due, after its arrival.
    [[nodiscard]] std::optional<std::chrono::steady_clock::duration> first_token_target() const {
        if (with.first_token_target_ms == 0)
            return std::nullopt;
        return std::chrono::milliseconds(with.first_token_target_ms);
    }

    /// Tokens that the pages hold. Two pages are left for the copies of partial pages that a turn makes, with a codec
    /// of whole pages those of the full-precision rows of a forward pass, and with layer groups what is not in pages.
    [[nodiscard]] std::size_t cache_tokens() const {
        const std::size_t others = support::residual_bytes(layers.codec, cache.shape(), with.max_batch_tokens) +
                                   layers.held_bytes(with.max_batch_tokens);
        const std::size_t pages = cache.stats().pages, page_bytes = cache.codec().page_bytes();
        return (pages - std::min(pages, 2 + (others + page_bytes - 1) / page_bytes)) * with.page;
    }
    /// Bytes that the sequence of an idle conversation of so many tokens holds.
    [[nodiscard]] std::size_t idle_bytes(std::size_t tokens) const {
        return (tokens / with.page + 1) * cache.codec().page_bytes() + layers.held_bytes(0);
    }

    /// Maximum tokens of a prompt and its answer: what the model has positions for, and the pages hold.
    [[nodiscard]] std::size_t context() const {
        return std::min(
            {with.context == 0 ? model.max_positions() : with.context, model.max_positions(), cache_tokens()});
    }

    options with;
    std::string name;
    kvcache::transformer model;
    kvcache::tokenizer words;
    std::optional<kvcache::chat_format> form; ///< Empty for a model without a usable chat template.
    std::string no_form;                      ///< The reason, if `form` is empty.
    bool parsed_arguments = false;            ///< The template takes the arguments of calls as objects.
    api_keys keys;
    ready_memory memory;
    Layers layers;
    store<Layers> cache;
    kvcache::reuse_mode mode;                     ///< Of requests that do not say.
    kvcache::any_recompute recompute;             ///< Likewise.
    kvcache::tenant shared = cache.open_tenant(); ///< Of what belongs to no key and no salt.
    kvcache::session_table<conversation<Layers>> sessions;
    ended_answers ended;
    latencies times;
    preparation prepare;      ///< Of large requests.
    kvcache::drafter drafter; ///< Of a smaller model; empty: prompt lookup.

private:
    host(options o, kvcache::loaded_model loaded, kvcache::tokenizer speaks, const chosen_tier& tier,
         const Layers& kept, std::unique_ptr<draft_model> drafts)
        : with(std::move(o)),
          name(!with.name.empty() ? with.name : name_of(std::filesystem::canonical(with.model))),
          model(std::move(loaded.model)),
          words(std::move(speaks)),
          layers(kept),
          cache(support::make_cache_of(layers,
                                       {.shape = model.shape(with.page),
                                        .limit = {.bytes = with.cache_mib << 20},
                                        .id = identity(loaded.weights),
                                        .tenants = with.tenants,
                                        .fair_tenants = true},
                                       kvcache::hash::xxh3{tier.secret}, kvcache::locking::mutex{}, tier,
                                       kvcache::storage::heap{&memory, true})),
          mode(*support::read_mode(with.mode)),
          recompute(*kvcache::any_recompute::named(with.recompute)),
          // Idle conversations hold at most three quarters of the pages.
          sessions({.sessions = with.sessions, .bytes = (with.cache_mib << 20) / 4 * 3}),
          drafter(drafts ? drafts->drafter() : kvcache::drafter()),
          drafts_(std::move(drafts)),
          threads_(with.threads),
          pipeline_(cache, model, threads_, with.max_batch_tokens),
          engine_(cache, model, pipeline_,
                  {.max_batch_tokens = with.max_batch_tokens,
                   .shared_batch_tokens = with.shared_batch_tokens,
                   .max_sequences = with.max_sequences,
                   .client_sequences = with.key_sequences,
                   .client_tokens_per_second = with.key_tokens_per_second,
                   .patience = std::chrono::seconds(5), // a turn that is about to be asked holds pages, too
                   .waiting = with.queue}) {
        if (auto read = kvcache::chat_template::open(words, "default")) {
            parsed_arguments = read->takes_parsed_arguments();
            // A date changes the prompt every day: only a template that cannot do without one gets it.
            const std::vector<kvcache::chat_message> some{{.content = "x"}};
            kvcache::chat_options rendering;
            if (!read->render(some, rendering) && read->render(some, {.now = support::local_time()}))
                rendering.now = support::local_time();
            form.emplace(kvcache::chat_format{words, std::move(*read), rendering});
        } else
            no_form = read.error().message;
        {
            auto nothing = cache.open(shared); // allocates the first pages before the first request
            (void)cache.reserve(nothing, 1);
        }
        engine_.set_relief([this] { return ended.keep_one() || sessions.evict(); });
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

    std::unique_ptr<draft_model> drafts_;
    kvcache::thread_pool threads_;
    kvcache::pipeline<store<Layers>, kvcache::transformer> pipeline_;
    kvcache::engine<store<Layers>, kvcache::transformer> engine_;
    std::jthread computing_;

public:
    [[nodiscard]] auto& engine() noexcept { return engine_; }
};

} // namespace server
