// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../support/codec_flag.hpp"
#include "../support/flags.hpp"
#include "../support/reuse_flags.hpp"
#include "../support/tier_flag.hpp"
#include "../support/tier_secret.hpp"
#include <CLI/CLI.hpp>

namespace server {

/// The command line options of the server.
struct options {
    std::string model;
    std::string name;               ///< Name of the model in the API; default: that of its directory or file.
    std::string host = "127.0.0.1"; ///< Default: loopback only.
    int port = 8080;
    std::vector<std::string> api_keys;
    std::string api_key_file;
    bool share_prefixes = false;          ///< Clients with different keys reuse each other's pages.
    std::size_t tenants = 1024;           ///< Keys and salts whose pages are kept apart at the same time.
    std::vector<std::string> allow_hosts; ///< Names in Host besides localhost, for a server on loopback without a key.
    std::vector<std::string> allow_origins; ///< Origins of web pages that may use it: "https://name:port", or "*".
    std::size_t threads = 2;
    std::size_t cache_mib = 1024;
    std::uint32_t page = 64;
    std::size_t max_batch_tokens = 256, shared_batch_tokens = 32;
    std::size_t max_sequences = 64;
    std::size_t queue = 256;
    std::size_t context = 0; ///< Maximum tokens of a prompt and its answer; 0 for all positions of the model.
    std::size_t sessions = 64;
    std::size_t connections = 2048;
    std::size_t body_mib = 8;
    std::size_t bodies_mib = 256; ///< For all large bodies that are being received or read.
    std::size_t timeout_s = 600;  ///< Timeout of a request.
    std::size_t read_timeout_s =
        30; ///< What a client may take to send a request; a second more for each 64 KiB that arrive.
    std::size_t draft = 0;
    std::string draft_model;               ///< What drafts; empty: prompt lookup.
    std::size_t draft_cache_mib = 256;     ///< For its pages.
    std::size_t key_sequences = 0;         ///< Answers of a key at once; 0: no limit of its own.
    double key_tokens_per_second = 0.0;    ///< Tokens a key may have computed, on average; 0: no limit.
    std::size_t first_token_target_ms = 0; ///< When a first token is due; 0: never.
    std::string mode = "prefix";           ///< What is reused where a request does not say.
    std::string recompute = "head:16";     ///< Which tokens of a chunk run again, likewise.
    std::string overflow = "refuse";
    std::string codec = "f32";
    std::string tier;
    std::string tier_secret_file;
    bool packed_cache = false;
    bool int8 = false;
    bool debug = false;
};

/// Accepts an origin as browsers write it (RFC 6454, 6.1), or "*".
[[nodiscard]] inline CLI::Validator origin_text() {
    return CLI::Validator(
        [](std::string& text) {
            const std::size_t scheme = text.find("://");
            const bool whole = scheme != text.npos && scheme > 0 && scheme + 3 < text.size() &&
                               text.find_first_of("/ ,*", scheme + 3) == text.npos;
            return text == "*" || whole ? std::string() : "an origin is scheme://host:port without a path, or *";
        },
        "ORIGIN");
}

inline void add_flags(CLI::App& app, options& o) {
    using support::whole;
    app.add_option("--model", o.model, "Hugging Face model directory, or GGUF file")
        ->required()
        ->check(CLI::ExistingPath);
    app.add_option("--name", o.name, "What clients call the model (the name of its directory or file)");
    app.add_option("--host", o.host, "Address to listen on")->capture_default_str();
    app.add_option("--port", o.port, "0: any that is free")->check(CLI::Range(0, 65535))->capture_default_str();
    app.add_option("--api-key", o.api_keys,
                   "Clients must send one as a bearer token; others on this machine see it here")
        ->check([](const std::string& key) { return key.empty() ? "the key is empty" : std::string(); });
    app.add_option("--api-key-file", o.api_key_file, "File with a key on each line; KVCACHE_API_KEYS has more");
    app.add_flag("--share-prefixes", o.share_prefixes, "Clients with different keys reuse each other's prefixes");
    app.add_option("--tenants", o.tenants, "Keys and salts whose prefixes are kept apart at once")
        ->check(whole(1, 65536))
        ->capture_default_str();
    app.add_option("--allow-host", o.allow_hosts, "Names that clients call it by, as through a proxy");
    app.add_option("--allow-origin", o.allow_origins,
                   "Web pages that may use it from a browser: scheme://host:port, or * for all")
        ->check(origin_text());
    app.add_option("--threads", o.threads, "Threads that compute")->check(whole(1, 1024))->capture_default_str();
    app.add_option("--cache-mib", o.cache_mib, "MiB for pages")->check(whole(1, 1u << 20))->capture_default_str();
    app.add_option("--page", o.page, "Tokens a page")->check(support::page_size())->capture_default_str();
    app.add_option("--max-batch-tokens", o.max_batch_tokens, "Rows of a forward pass")
        ->check(whole(2, 65536))
        ->capture_default_str();
    app.add_option("--shared-batch-tokens", o.shared_batch_tokens, "Rows of a forward pass while several keys ask")
        ->check(whole(2, 65536))
        ->capture_default_str();
    app.add_option("--max-sequences", o.max_sequences, "Answers under way at once")
        ->check(whole(1, 4096))
        ->capture_default_str();
    app.add_option("--queue", o.queue, "Requests that may wait")->check(whole(1, 65536))->capture_default_str();
    app.add_option("--context", o.context, "Tokens that prompt and answer may take (0: the model's positions)")
        ->check(whole())
        ->capture_default_str();
    app.add_option("--sessions", o.sessions, "Conversations kept")->check(whole(1, 65536))->capture_default_str();
    app.add_option("--connections", o.connections, "Open at once")->check(whole(1, 20000))->capture_default_str();
    app.add_option("--body-mib", o.body_mib, "Largest request body")->check(whole(1, 1024))->capture_default_str();
    app.add_option("--bodies-mib", o.bodies_mib, "Memory for all large bodies together")
        ->check(whole(1, 1u << 20))
        ->capture_default_str();
    app.add_option("--timeout", o.timeout_s, "Seconds a request may take")
        ->check(whole(1, 86400))
        ->capture_default_str();
    app.add_option("--read-timeout", o.read_timeout_s,
                   "Seconds a client may take to send a request, and more for its size")
        ->check(whole(1, 3600))
        ->capture_default_str();
    auto* draft = app.add_option("--draft", o.draft, "Tokens guessed ahead at a time; they change no answer")
                      ->check(whole(0, 64))
                      ->capture_default_str();
    auto* draft_model = app.add_option("--draft-model", o.draft_model,
                                       "A smaller model with the same tokenizer that guesses, not prompt lookup")
                            ->check(CLI::ExistingPath)
                            ->needs(draft);
    app.add_option("--draft-cache-mib", o.draft_cache_mib, "Memory for its pages")
        ->check(whole(1, 1u << 20))
        ->needs(draft_model)
        ->capture_default_str();
    app.add_option("--key-sequences", o.key_sequences, "Answers that a key may have at once (0: as many as all)")
        ->check(whole(0, 1024))
        ->capture_default_str();
    app.add_option("--key-tokens-per-second", o.key_tokens_per_second,
                   "Tokens of prompts, without cached ones, and answers of a key, on average (0: no limit)")
        ->check(CLI::Range(0.0, 1e9))
        ->capture_default_str();
    app.add_option("--first-token-target", o.first_token_target_ms,
                   "Milliseconds after which a first token is due: what is due first goes first (0: never)")
        ->check(whole(0, 1u << 30))
        ->capture_default_str();
    app.add_option(
           "--overflow", o.overflow,
           "A chat that is too long is refused, or drops its oldest turns (slide) or tokens (sinks: approximate)")
        ->check(CLI::IsMember({"refuse", "slide", "sinks"}))
        ->capture_default_str();
    support::add_reuse_flags(app, o.mode, o.recompute);
    support::add_codec_flag(app, o.codec);
    support::add_tier_flag(app, o.tier);
    support::add_tier_secret_flag(app, o.tier_secret_file);
    app.add_flag("--packed-cache", o.packed_cache, "Keep the packed weights next to the model");
    app.add_flag("--int8", o.int8, "Compute in int8, with float weights and all activations rounded");
    app.add_flag("--debug", o.debug, "Say on standard error what each request reused");
}

} // namespace server
