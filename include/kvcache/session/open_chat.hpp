// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/layers/grouped.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/session/chat_overflow.hpp>
#include <kvcache/session/chat_session.hpp>
#include <kvcache/session/chat_transcript.hpp>
#include <kvcache/session/decode_state.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Settings of open_chat. `Overflow`: what happens to a conversation that is longer than the context.
template <chat_overflow_policy Overflow = refuse_overflow>
struct chat_settings {
    /// Limit of the pages if `bytes` is 0.
    static constexpr std::size_t default_bytes = std::size_t{2} << 30;

    std::string system = {}; ///< System prompt; empty: none.
    /// Computes the system prompt when the chat is opened, for a first answer that comes sooner. Off by default: it
    /// makes opening take longer by as much, which a chat that is never spoken to would pay for nothing.
    bool warm_up = false;
    sampler sampling = {};                      ///< Default: greedy.
    stop_criteria stop = {};                    ///< Without stop tokens: those of the model.
    std::vector<std::string> stop_strings = {}; ///< Each ends an answer and is not part of it.
    chat_options rendering = {};
    Overflow overflow = {};

    /// Maximum tokens of prompt and answer together. 0: the positions of the model, or as many as `bytes` allow.
    std::size_t context = 0;
    /// Memory for pages, in bytes. 0: enough for the context, at most default_bytes. It holds the context twice,
    /// because a turn that changes earlier messages runs while the tokens before it are kept, and the residual rows
    /// of a codec of whole pages.
    std::size_t bytes = 0;
    std::uint32_t page_tokens = 64; ///< Tokens per page, as page_shape::tokens.
    std::size_t threads = 0;        ///< Threads, the caller included; 0: all hardware threads.
    load_options loading = {};      ///< Its threads are `threads` if 0.

    /// Identity of the pages; default: that of model and tokenizer.
    std::optional<identity> id = std::nullopt;
};

namespace detail {

/// Rows of one forward pass of a chat.
inline constexpr std::size_t chat_split = 256;

/// The parts of a chat, which refer to each other.
template <class Cache, class Overflow>
struct chat_parts {
    template <class OpenCache>
    chat_parts(loaded_model from, chat_format format, chat_settings<Overflow> given, OpenCache open_cache)
        : settings(std::move(given)),
          loaded(std::move(from)),
          threads(open_threads(settings.threads)),
          store(open_cache()),
          run(store, loaded.model, threads, chat_split),
          session(store, std::move(format), settings.context, settings.system, settings.overflow) {}

    chat_settings<Overflow> settings;
    loaded_model loaded;
    thread_pool threads;
    Cache store;
    pipeline<Cache, transformer> run;
    chat_session<Cache, Overflow> session;
};

/// Bytes of the pages of a chat, and how many it needs for a number of tokens.
struct chat_pages {
    std::size_t bytes = 0;    // of a page
    std::size_t tokens = 0;   // of a page
    std::size_t residual = 0; // pages' worth of residual rows: of two conversations, and of a forward pass

    /// Two conversations of this many tokens: a turn may change earlier messages while the tokens before it are kept.
    [[nodiscard]] std::size_t count(std::size_t of_tokens) const {
        return 2 * ((of_tokens - 1) / tokens + 1) + residual;
    }

    template <class Codec>
    [[nodiscard]] static chat_pages of(const Codec& codec, page_shape shape) {
        chat_pages made{codec.page_bytes(), shape.tokens};
        if constexpr (page_writer<Codec>) {
            const residual_window window = codec.window();
            const std::size_t rows = 2 * (window.first + window.recent + 1) + (chat_split - 1) / shape.tokens + 3;
            made.residual = (rows * codec::residual_page::bytes_for(shape) + made.bytes - 1) / made.bytes;
        }
        return made;
    }
};

/// Fills in the context and the bytes of settings, for a model with `positions`. Errors: those of open_chat.
template <class Overflow>
[[nodiscard]] result<void> complete_memory(chat_settings<Overflow>& with, std::size_t positions,
                                           const chat_pages& page) {
    const std::size_t wanted = with.context != 0 ? with.context : positions;
    const std::size_t answer = with.stop.max_tokens;
    if (wanted > positions)
        return error{error_code::out_of_range, "context",
                     "a context of " + std::to_string(wanted) + " tokens is longer than the model's " +
                         std::to_string(positions) + " positions"};
    if (answer >= wanted)
        return error{error_code::out_of_range, "max_tokens",
                     "an answer of " + std::to_string(answer) + " tokens and its prompt do not fit into a context of " +
                         std::to_string(wanted) + " tokens"};
    const std::size_t limit = with.bytes != 0 ? with.bytes : with.default_bytes;
    const std::size_t pages = limit / page.bytes;
    const std::size_t least = with.context != 0 ? wanted : answer + 1;
    if (pages < page.count(least))
        return error{error_code::out_of_memory, "bytes",
                     std::to_string(limit) + " bytes hold " + std::to_string(pages) + " pages of " +
                         std::to_string(page.bytes) + " bytes; a chat of " + std::to_string(least) + " tokens needs " +
                         std::to_string(page.count(least))};
    with.context = std::min(wanted, (pages - page.residual) / 2 * page.tokens);
    if (with.bytes == 0)
        with.bytes = page.count(with.context) * page.bytes;
    return {};
}

/// A policy as it is given; layers::grouped gets a model's layout if it has none.
template <class Policy>
[[nodiscard]] Policy for_model(Policy policy, const cache_layout& layout) {
    if constexpr (std::is_same_v<Policy, layers::grouped>)
        if (policy.layout.groups.empty())
            policy.layout = layout;
    return policy;
}

/// Returns an error whose message names the model's path.
KVCACHE_LAZY [[nodiscard]] inline error in_model(const std::filesystem::path& path, error reason) {
    const std::string name = path.filename().string();
    if (reason.message.find(path.string()) != std::string::npos)
        return reason;
    if (!name.empty() && reason.message.starts_with(name + ": "))
        reason.message.erase(0, name.size() + 2);
    reason.message = path.string() + ": " + reason.message;
    return reason;
}

} // namespace detail

/// A chat with a model: owns the model, the cache, the threads and the conversation. Can be moved; after that the
/// earlier object may only be assigned or destroyed. One thread at a time.
template <class Cache = cache<>, chat_overflow_policy Overflow = refuse_overflow>
class basic_chat {
public:
    using parts_type = detail::chat_parts<Cache, Overflow>;

    /// Requires: `parts` is not null. open_chat makes them.
    explicit basic_chat(std::unique_ptr<parts_type> parts) : parts_(std::move(parts)) {
        expects(parts_ != nullptr, "a chat has parts");
    }

    /// Says `text` as the user. Passes the answer to `on_text(piece)` while it is generated; `on_text` returns whether
    /// to go on. Errors: those of chat_session::say, cancelled if `on_text` returned false; the conversation is
    /// unchanged then, also if `on_text` throws. Cost: computes the tokens that the cache lacks and those of the
    /// answer.
    template <std::predicate<std::string> OnText>
    [[nodiscard]] result<chat_reply> say(std::string text, OnText on_text) {
        const auto& with = parts_->settings;
        return parts_->session.say(parts_->run, std::move(text), with.sampling, with.stop, with.stop_strings,
                                   std::move(on_text));
    }
    /// The same, with the answer written to a stream and flushed after each piece. Errors: also cancelled if the
    /// stream fails.
    [[nodiscard]] result<chat_reply> say(std::string text, std::ostream& to) {
        return say(std::move(text),
                   [&](const std::string& piece) { return static_cast<bool>(to << piece << std::flush); });
    }
    /// The same, with the answer only in the result.
    [[nodiscard]] result<chat_reply> say(std::string text) {
        return say(std::move(text), [](const std::string&) { return true; });
    }

    /// Removes all messages but the system prompt. Errors: those of chat_session::clear; nothing has changed then.
    [[nodiscard]] result<void> reset() { return parts_->session.clear(); }

    /// The conversation, its pipeline and its cache, for anything else. They live as long as the chat, moves included.
    [[nodiscard]] chat_session<Cache, Overflow>& session() noexcept { return parts_->session; }
    [[nodiscard]] const chat_session<Cache, Overflow>& session() const noexcept { return parts_->session; }
    [[nodiscard]] kvcache::pipeline<Cache, transformer>& pipeline() noexcept { return parts_->run; }
    [[nodiscard]] Cache& cache() noexcept { return parts_->store; }

    [[nodiscard]] const loaded_model& loaded() const noexcept { return parts_->loaded; }
    /// The settings in effect: those given, with context, bytes, stop tokens and identity filled in.
    [[nodiscard]] const chat_settings<Overflow>& settings() const noexcept { return parts_->settings; }

private:
    std::unique_ptr<parts_type> parts_;
};

/// Opens a chat with a model, a tokenizer and a template of your own, with a cache of these policies in any order.
/// Errors: out_of_range for a setting that is not valid, by its name; out_of_memory, with the bytes needed; those of
/// chat_session::warm_up, if the settings ask for it.
template <chat_overflow_policy Overflow = refuse_overflow, policy... Ps>
    requires one_policy_a_role<Ps...>
[[nodiscard]] result<basic_chat<cache<Ps...>, Overflow>>
open_chat(loaded_model loaded, tokenizer words, chat_template form, chat_settings<Overflow> settings, Ps... policies) {
    using parts = detail::chat_parts<cache<Ps...>, Overflow>;
    const transformer& model = loaded.model;
    const page_shape shape = model.shape(settings.page_tokens);
    if (!has_pages_of<typename cache<Ps...>::codec_type>(shape))
        return error{error_code::out_of_range, "page_tokens",
                     "page_tokens is 1 to 65536, and a multiple of 16 for a codec that stores tiles"};
    if (auto valid = settings.sampling.check(model.vocabulary()); !valid)
        return valid.error();
    using codec_policy_type = decltype(detail::compose<Ps...>::policies::codec);
    const auto page =
        detail::chat_pages::of(detail::take<codec_policy_type>(std::tuple(policies...)).open(shape), shape);
    if (auto fits = detail::complete_memory(settings, model.max_positions(), page); !fits)
        return fits.error();
    if (settings.stop.stop_tokens.empty())
        settings.stop.stop_tokens = model.config().eos;
    if (!settings.id) {
        settings.id = model.id(loaded.weights);
        settings.id->tokenizer = words.digest();
    }
    std::unique_ptr<parts> made;
    const auto open_cache = [&, id = *settings.id, limit = cache_limits{settings.bytes},
                             layout = model.layout(settings.page_tokens)] {
        return make_cache({shape, limit, id}, detail::for_model(std::move(policies), layout)...);
    };
    if (!detail::completes<std::bad_alloc>([&] {
            chat_format format{std::move(words), std::move(form), settings.rendering};
            made = std::make_unique<parts>(std::move(loaded), std::move(format), std::move(settings), open_cache);
        }))
        return error{error_code::out_of_memory, "memory", "the system has too little memory for the chat's cache"};
    if (made->settings.warm_up)
        if (auto warm = made->session.warm_up(made->run); !warm)
            return warm.error();
    return basic_chat<cache<Ps...>, Overflow>(std::move(made));
}

/// Opens a chat with a Hugging Face model directory or a GGUF file: weights, tokenizer and the template named
/// "default". Everything else has a default in the settings, and each role of the cache in the policies, given by value
/// in any order. layers::grouped without a layout has the model's, so that layers with a window keep little:
///
///     auto chat = kvcache::open_chat("path");
///     const auto answer = chat->say("Who is Ella?", std::cout); // after a look at chat.error()
///
/// Errors: those of load_model, tokenizer::open and chat_template::open, with the path in the message; and as above.
/// Cost: reads and packs all weights, unless settings.loading names a file of packed weights.
template <chat_overflow_policy Overflow = refuse_overflow, policy... Ps>
    requires one_policy_a_role<Ps...>
[[nodiscard]] result<basic_chat<cache<Ps...>, Overflow>>
open_chat(const std::filesystem::path& path, chat_settings<Overflow> settings = {}, Ps... policies) {
    auto words = tokenizer::open(path);
    if (!words)
        return detail::in_model(path, words.error());
    auto form = chat_template::open(*words, "default");
    if (!form)
        return detail::in_model(path, form.error());
    load_options loading = settings.loading;
    if (loading.threads == 0)
        loading.threads = settings.threads;
    auto loaded = load_model(path, loading);
    if (!loaded)
        return detail::in_model(path, loaded.error());
    auto chat =
        open_chat(*std::move(loaded), *std::move(words), *std::move(form), std::move(settings), std::move(policies)...);
    if (!chat)
        return detail::in_model(path, chat.error());
    return chat;
}

}} // namespace kvcache
