// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attend.hpp"
#include "completions.hpp"
#include "framing.hpp"
#include "origin.hpp"
#include "page.hpp"
#include "problem.hpp"
#include "serve_client.hpp"

namespace server {

/// The request handlers, by method and path.
template <class Layers>
class routes {
public:
    explicit routes(host<Layers>& at) : at_(at), completions_(at) {
        // With a key, or where other machines may know the server by any name, a wrong name does no harm.
        if (at.keys.empty() && is_loopback(at.with.host)) {
            names_ = {"localhost"};
            for (const std::string& each : at.with.allow_hosts)
                names_.push_back(host_name(each));
        }
    }

    /// What the requests of every connection are checked and answered with. Requires: this outlives it.
    [[nodiscard]] request_rules rules() {
        request_rules made{.body_bytes = at_.with.body_mib << 20,
                           .bodies = std::make_shared<byte_budget>(at_.with.bodies_mib << 20),
                           .guard = [this](const http_request& in) { return guard(in); },
                           .finish = [this](const http_request& in,
                                            http_response& out) { allow_origin(in, out, at_.with.allow_origins); },
                           .routes = {}};
        const auto on = [&](const char* method, const char* path, auto answer) {
            made.routes.add(method, path, std::move(answer));
        };
        on("POST", "/v1/chat/completions", [this](const auto& in, auto& out) { completions_.answer(in, out, true); });
        on("POST", "/v1/completions", [this](const auto& in, auto& out) { completions_.answer(in, out, false); });
        on("POST", "/v1/warm", [this](const auto& in, auto& out) { warm(in, out); });
        on("POST", "/tokenize", [this](const auto& in, auto& out) {
            prepared(in, out, [&](const std::stop_token& stop) { tokenize(in, out, stop); });
        });
        on("POST", "/detokenize", [this](const auto& in, auto& out) {
            prepared(in, out, [&](const std::stop_token&) { detokenize(in, out); });
        });
        on("OPTIONS", "/*", [this](const auto& in, auto& out) {
            if (!is_preflight(in, at_.with.allow_origins))
                return refuse(out, {.status = 404, .code = "404", .message = "there is nothing to ask with OPTIONS"});
            answer_preflight(in, out);
        });
        on("GET", "/v1/models", [this](const auto&, auto& out) { reply(out, models()); });
        on("GET", "/v1/models/*", [this](const auto& in, auto& out) { model(below(in, "/v1/models/"), out); });
        on("GET", "/v1/sessions", [this](const auto& in, auto& out) { sessions(in, out); });
        on("DELETE", "/v1/sessions/*", [this](const auto& in, auto& out) { forget(in, out); });
        on("GET", "/metrics", [this](const auto&, auto& out) {
            out.body = metrics();
            out.type = "text/plain; version=0.0.4";
        });
        on("GET", "/health", [this](const auto&, auto& out) { reply(out, {{"status", "ok"}, {"model", at_.name}}); });
        on("GET", "/", [](const auto&, auto& out) {
            out.body = page;
            out.type = "text/html; charset=utf-8";
        });
        return made;
    }

private:
    // Returns the part of a path after its first part.
    [[nodiscard]] static std::string below(const http_request& in, std::string_view above) {
        return in.path().substr(above.size());
    }

    // Before the body is read. The body of a refused request is not read, so its connection is closed.
    [[nodiscard]] std::optional<problem> guard(const http_request& in) const {
        if (auto why = check_framing(in, at_.with.body_mib << 20))
            return why;
        if (auto why = check_origin(in, names_, at_.with.allow_origins))
            return why;
        if (is_preflight(in, at_.with.allow_origins)) // a browser sends no key with it
            return std::nullopt;
        if (in.path() == "/" || in.path() == "/health" || at_.keys.empty() || at_.keys.of(in))
            return std::nullopt;
        return problem{401, "authentication_error", "invalid_api_key", "the API key is missing or wrong"};
    }

    // Calls `work(stop)`, as a large request if it is one.
    template <class Work>
    void prepared(const http_request& in, http_response& out, Work&& work) {
        const request_watch watch(in.client, std::chrono::seconds(at_.with.timeout_s));
        if (!at_.prepare.run(in.body().size(), watch, work))
            refuse(out, {503, "server_error", "request", "the request was cancelled, or its time is over"});
    }

    [[nodiscard]] kvcache::result<question> read_warm(const std::string& text) const {
        auto body = read_body(text);
        if (!body)
            return body.error();
        const bool chat = body->is_object() && body->contains("messages");
        if (body->is_object() && !chat && body->contains("text")) {
            (*body)["prompt"] = (*body)["text"];
            body->erase("text");
        }
        if (body->is_object())
            (*body)["max_tokens"] = 0;
        auto made = read_question(*body, chat);
        if (made) {
            made->bare = !chat && made->mode.value_or(at_.mode) == kvcache::reuse_mode::chunks;
            made->mode = kvcache::reuse_mode::prefix; // what is stored is exact
        }
        if (made)
            detail::keep_order(text, *made);
        return made;
    }

    // Computes a text, or the beginning of a chat, so that later requests reuse it: as their prefix, or as a chunk at
    // any position if its mode is `chunks`.
    void warm(const http_request& in, http_response& out) {
        kvcache::result<question> asked = question{};
        prepared(in, out, [&](const std::stop_token&) {
            if (asked = read_warm(in.body()); !asked)
                refuse(out, problem_of(asked.error()));
        });
        if (out.status != 200)
            return;
        if (asked->prompts.size() > 1)
            return refuse(out, {.code = "text", .message = "text must be one text"});
        auto tenant = at_.tenant_of(in, asked->cache_salt);
        if (!tenant)
            return refuse(out, problem_of(tenant.error()));
        asked->client = at_.client_of(in);
        const auto talk = std::make_shared<exchange<Layers>>(at_, std::make_shared<question>(std::move(*asked)), 0,
                                                             std::move(*tenant));
        kvcache::result<void> begun;
        prepared(in, out, [&](const std::stop_token& stop) {
            if (begun = talk->prepare(stop); !begun)
                refuse(out, problem_of(begun.error()));
        });
        if (out.status != 200)
            return;
        const request_watch watch(in.client, std::chrono::seconds(at_.with.timeout_s));
        if (begun = talk->start(watch); !begun)
            return refuse(out, problem_of(begun.error()));
        serve(*talk, in.client);
        talk->finish();
        if (const auto failed = talk->failure())
            return refuse(out, problem_of(*failed));
        reply(out, {{"object", "warm"},
                    {"token_count", talk->prompt().size()},
                    {"cached_tokens", talk->outcome().reused},
                    {"chunk_tokens", talk->chunk_tokens()},
                    {"page_tokens", at_.with.page},
                    {"partial_tail_tokens", talk->prompt().size() % at_.with.page}});
    }

    void tokenize(const http_request& in, http_response& out, const std::stop_token& stop) {
        const auto body = read_body(in.body());
        if (!body)
            return refuse(out, problem_of(body.error()));
        field_reader fields(*body);
        std::string text;
        bool special = true;
        if (!body->is_object())
            fields.refuse("body", "must be an object");
        else if (!body->contains("prompt") && !body->contains("content"))
            fields.refuse("prompt", "is missing: the text to tokenize, which may also be called content");
        fields.text(body->is_object() && body->contains("prompt") ? "prompt" : "content", text);
        fields.flag("add_special_tokens", special);
        if (fields.problem())
            return refuse(out, problem_of(*fields.problem()));
        const auto ids = at_.words.encode(text, {.add_special_tokens = special, .stop = stop});
        if (!ids)
            return refuse(out, problem_of(ids.error()));
        json list = json::array();
        for (const auto id : *ids)
            list.push_back(kvcache::index_of(id));
        reply(out, {{"count", ids->size()}, {"max_model_len", at_.context()}, {"tokens", std::move(list)}});
    }

    void detokenize(const http_request& in, http_response& out) {
        const auto body = read_body(in.body());
        if (!body)
            return refuse(out, problem_of(body.error()));
        std::vector<kvcache::token_id> ids;
        const sent_json none;
        const sent_json& list = body->is_object() && body->contains("tokens") ? (*body)["tokens"] : none;
        bool good = list.is_array();
        for (std::size_t i = 0; good && i < list.size(); ++i) {
            good = list[i].is_number_integer() && list[i].get<double>() >= 0.0 &&
                   list[i].get<double>() < static_cast<double>(at_.model.config().vocabulary);
            if (good)
                ids.push_back(kvcache::token_id{list[i].get<std::int32_t>()});
        }
        if (!good)
            return refuse(out, {400, "invalid_request_error", "tokens",
                                "tokens must be a list of token ids, each less than " +
                                    std::to_string(at_.model.config().vocabulary)});
        reply(out, {{"prompt", at_.words.decode(ids, {})}});
    }

    [[nodiscard]] json models() const { return {{"object", "list"}, {"data", json::array({model_entry()})}}; }

    [[nodiscard]] json model_entry() const {
        return {{"id", at_.name},
                {"object", "model"},
                {"created", 0},
                {"owned_by", "kvcache"},
                {"max_model_len", at_.context()}};
    }

    void model(const std::string& name, http_response& out) const {
        name == at_.name ? reply(out, model_entry()) : refuse(out, no_model(name, at_.name));
    }

    // A client sees and forgets its own conversations only.
    void sessions(const http_request& in, http_response& out) {
        const auto tenant = at_.tenant_of(in, salt_of(in));
        if (!tenant)
            return refuse(out, problem_of(tenant.error()));
        json list = json::array();
        for (const auto& each : at_.sessions.list(digest_of(at_.cache.id(*tenant))))
            list.push_back({{"id", each.key}, {"requests", each.uses}, {"bytes", each.bytes}, {"in_use", each.in_use}});
        reply(out, {{"object", "list"}, {"data", std::move(list)}});
    }

    void forget(const http_request& in, http_response& out) {
        const std::string key = below(in, "/v1/sessions/");
        const auto tenant = at_.tenant_of(in, salt_of(in));
        if (!tenant)
            return refuse(out, problem_of(tenant.error()));
        if (!at_.sessions.remove(digest_of(at_.cache.id(*tenant)), key,
                                 request_watch(in.client, std::chrono::seconds(at_.with.timeout_s))))
            return refuse(out, {404, "invalid_request_error", "session_not_found", "there is no session " + key});
        reply(out, {{"id", key}, {"deleted", true}});
    }

    // The salt of a request without a body.
    [[nodiscard]] static std::string salt_of(const http_request& in) {
        return in.header("x-cache-salt").substr(0, 256);
    }

    [[nodiscard]] std::string metrics() {
        const std::string label = "model_name=\"" + kvcache::observer::exposition::escaped(at_.name, true) + '"';
        const auto now = at_.engine().stats();
        const auto pages = at_.cache.stats();
        kvcache::observer::exposition to({{"model_name", at_.name}});
        std::string text = at_.times.text(label);
        const double usage =
            pages.pages == 0 ? 0.0 : static_cast<double>(pages.in_use) / static_cast<double>(pages.pages);
        const auto gauge = [&](const std::string& name, const std::string& help, const std::string& value) {
            text += "# HELP " + name + " " + help + "\n# TYPE " + name + " gauge\n" + name + "{" + label + "} " +
                    value + "\n";
        };
        gauge("vllm:num_requests_running", "Requests under way.", std::to_string(now.running));
        gauge("vllm:num_requests_waiting", "Requests in the queue.", std::to_string(now.waiting));
        gauge("vllm:kv_cache_usage_perc", "The share of pages that sequences reference, 0 to 1.",
              std::to_string(usage));
        gauge("vllm:num_preemptions", "Requests preempted in favor of an older one or of another key.",
              std::to_string(now.preempted));
        to.gauge("kvcache_pages", "Pages that fit the budget.", pages.pages);
        to.gauge("kvcache_pages_free", "Pages never used, or given back.", pages.free);
        to.gauge("kvcache_pages_in_use", "Pages referenced by live sequences.", pages.in_use);
        to.gauge("kvcache_pages_evictable", "Unreferenced pages, cached for the next match.", pages.evictable);
        to.gauge("kvcache_sessions", "Conversations kept.", at_.sessions.size());
        to.gauge("kvcache_session_bytes", "Bytes of idle conversations.", at_.sessions.bytes());
        to.counter("kvcache_steps", "Forward passes.", now.steps);
        to.counter("kvcache_rows", "Rows of all forward passes: tokens that were computed.", now.rows);
        to.counter("kvcache_first_tokens_on_time", "First tokens that came before they were due.", now.on_time);
        to.counter("kvcache_first_tokens_late", "First tokens that came later.", now.late);
        to.counter("kvcache_drafted_tokens", "Tokens guessed ahead.", now.drafted);
        to.counter("kvcache_accepted_tokens", "Of them, those that were right.", now.accepted);
        const auto tier = kvcache::tier_stats_of(at_.cache);
        to.counter("kvcache_tier_loaded_tokens", "Tokens that were read from the tier.", tier.loaded_tokens);
        to.counter("kvcache_tier_loaded_chunks", "Documents that were found in the tier.", tier.loaded_chunks);
        to.counter("kvcache_tier_stored_pages", "Pages that the tier has written.", tier.stored);
        to.counter("kvcache_tier_failures", "Reads and writes that failed.", tier.store_failures);
        to.counter("kvcache_tier_refused_pages", "Pages in the tier that were damaged, forged or foreign.",
                   tier.refused);
        return text + to.text();
    }

    host<Layers>& at_;
    completions<Layers> completions_;
    std::vector<std::string> names_; // that Host may have; empty: any
};

} // namespace server
