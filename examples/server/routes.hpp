// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/version.hpp>

#include <algorithm>
#include <exception>
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

namespace server {

/// The request handlers, by method and path.
class routes {
public:
    explicit routes(host& at) : at_(at), completions_(at) {
        // With a key, or where other machines may know the server by any name, a wrong name does no harm.
        if (at.with.api_key.empty() && is_loopback(at.with.host)) {
            names_ = {"localhost"};
            for (const std::string& each : at.with.allow_hosts)
                names_.push_back(host_name(each));
        }
    }

    void put_on(httplib::Server& web) {
        web.set_pre_routing_handler([this](const auto& in, auto& out) { return guard(in, out); });
        web.set_error_handler([](const httplib::Request& in, httplib::Response& out) {
            if (!out.body.empty())
                return;
            connection& client = *connection::here();
            if (out.status != 404) { // where the next request begins may be unknown
                client.close_after_reply();
                out.set_header("Connection", "close");
            }
            if (client.exceeded())
                out.status = client.in_body() ? 413 : 431;
            problem why{.status = out.status, .code = std::to_string(out.status)};
            why.message = out.status == 404   ? "there is nothing at " + in.method + " " + in.path
                          : out.status == 413 ? "the body is too large"
                          : out.status == 431 ? "the headers are too large"
                                              : "the request could not be read";
            refuse(out, why);
        });
        web.set_exception_handler([](const auto&, auto& out, const std::exception_ptr& fault) {
            problem why{.status = 500, .type = "server_error", .code = "internal"};
            try {
                std::rethrow_exception(fault);
            } catch (const std::bad_alloc&) {
                why = {.status = 503, .type = "overloaded_error", .code = "memory", .message = "out of memory"};
            } catch (const std::exception& words) {
                why.message = words.what();
            } catch (...) {
                why.message = "unknown";
            }
            refuse(out, why);
        });
        const auto post = [&](const char* path, auto answer) {
            web.Post(path, [this, answer](const httplib::Request& in, httplib::Response& out) {
                if (in.body.size() > at_.with.body_mib << 20) // in chunks
                    return refuse(out, {.status = 413, .code = "413", .message = "the body is too large"});
                answer(in, out);
            });
        };
        post("/v1/chat/completions", [this](const auto& in, auto& out) { completions_.answer(in, out, true); });
        post("/v1/completions", [this](const auto& in, auto& out) { completions_.answer(in, out, false); });
        post("/v1/warm", [this](const auto& in, auto& out) { warm(in, out); });
        post("/tokenize", [this](const auto& in, auto& out) { tokenize(in, out); });
        post("/detokenize", [this](const auto& in, auto& out) { detokenize(in, out); });
        web.Get("/v1/models", [this](const auto&, auto& out) { reply(out, models()); });
        web.Get(R"(/v1/models/(.+))", [this](const auto& in, auto& out) { model(in.matches[1].str(), out); });
        web.Get("/v1/sessions", [this](const auto&, auto& out) { reply(out, sessions()); });
        web.Delete(R"(/v1/sessions/(.+))", [this](const auto& in, auto& out) { forget(in.matches[1].str(), out); });
        web.Get("/metrics",
                [this](const auto&, auto& out) { out.set_content(metrics(), "text/plain; version=0.0.4"); });
        web.Get("/health", [this](const auto&, auto& out) { reply(out, {{"status", "ok"}, {"model", at_.name}}); });
        web.Get("/", [](const auto&, auto& out) { out.set_content(std::string(page), "text/html; charset=utf-8"); });
    }

private:
    using handled = httplib::Server::HandlerResponse;

    // Before the body is read. The body of a refused request is not read, so its connection is closed.
    handled guard(const httplib::Request& in, httplib::Response& out) const {
        connection& client = *connection::here();
        auto why = check_framing(in, client, at_.with.body_mib << 20);
        if (!why)
            why = check_origin(in, names_);
        if (why) {
            client.close_after_reply();
            out.set_header("Connection", "close");
            refuse(out, *why);
            return handled::Handled;
        }
        const bool open = in.path == "/" || in.path == "/health";
        if (open || at_.with.api_key.empty() ||
            same(bearer_token(in.get_header_value("Authorization")), at_.with.api_key))
            return handled::Unhandled;
        client.close_after_reply();
        out.set_header("Connection", "close");
        out.set_header("WWW-Authenticate", "Bearer");
        refuse(out, {401, "authentication_error", "invalid_api_key", "the API key is missing or wrong"});
        return handled::Handled;
    }

    // Returns the token of an Authorization header; the name of the scheme is in any case (RFC 9110, 11.1).
    [[nodiscard]] static std::string bearer_token(const std::string& header) {
        constexpr std::string_view scheme = "bearer ";
        const bool named = header.size() >= scheme.size() &&
                           std::equal(scheme.begin(), scheme.end(), header.begin(), [](char wanted, char sent) {
                               return wanted == (sent >= 'A' && sent <= 'Z' ? sent - 'A' + 'a' : sent);
                           });
        return named ? header.substr(header.find_first_not_of(' ', scheme.size() - 1)) : std::string();
    }

    // Compares in constant time.
    [[nodiscard]] static bool same(const std::string& given, const std::string& wanted) {
        unsigned differs = given.size() != wanted.size();
        for (std::size_t i = 0; i < given.size(); ++i)
            differs |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
        return differs == 0;
    }

    // Computes a text, or the beginning of a chat, so that later requests reuse it.
    void warm(const httplib::Request& in, httplib::Response& out) {
        auto body = read_body(in.body);
        if (!body)
            return refuse(out, problem_of(body.error()));
        const bool chat = body->is_object() && body->contains("messages");
        if (body->is_object() && !chat && body->contains("text")) {
            (*body)["prompt"] = (*body)["text"];
            body->erase("text");
        }
        if (body->is_object())
            (*body)["max_tokens"] = 0;
        auto asked = read_question(*body, chat);
        if (!asked)
            return refuse(out, problem_of(asked.error()));
        const auto talk = std::make_shared<exchange>(at_, std::move(*asked));
        if (auto begun = talk->ask({}); !begun)
            return refuse(out, problem_of(begun.error()));
        serve(*talk);
        talk->finish();
        if (const auto failed = talk->failure())
            return refuse(out, problem_of(*failed));
        reply(out, {{"object", "warm"},
                    {"token_count", talk->prompt().size()},
                    {"cached_tokens", talk->outcome().reused},
                    {"page_tokens", at_.with.page},
                    {"partial_tail_tokens", talk->prompt().size() % at_.with.page}});
    }

    void tokenize(const httplib::Request& in, httplib::Response& out) {
        const auto body = read_body(in.body);
        if (!body)
            return refuse(out, problem_of(body.error()));
        field_reader fields(*body);
        std::string text;
        bool special = true;
        fields.text(body->is_object() && body->contains("prompt") ? "prompt" : "content", text);
        fields.flag("add_special_tokens", special);
        if (!body->is_object())
            fields.refuse("body", "must be an object");
        if (fields.problem())
            return refuse(out, problem_of(*fields.problem()));
        const auto ids = at_.words.encode(text, {.add_special_tokens = special});
        if (!ids)
            return refuse(out, problem_of(ids.error()));
        json list = json::array();
        for (const auto id : *ids)
            list.push_back(kvcache::index_of(id));
        reply(out, {{"count", ids->size()}, {"max_model_len", at_.context()}, {"tokens", std::move(list)}});
    }

    void detokenize(const httplib::Request& in, httplib::Response& out) {
        const auto body = read_body(in.body);
        if (!body)
            return refuse(out, problem_of(body.error()));
        std::vector<kvcache::token_id> ids;
        const sent_json none;
        const sent_json& list = body->is_object() && body->contains("tokens") ? (*body)["tokens"] : none;
        bool good = list.is_array();
        for (std::size_t i = 0; good && i < list.size(); ++i) {
            good = list[i].is_number_integer() && list[i].get<double>() >= 0.0 && list[i].get<double>() <= 2147483647.0;
            if (good)
                ids.push_back(kvcache::token_id{list[i].get<std::int32_t>()});
        }
        if (!good)
            return refuse(out, {400, "invalid_request_error", "tokens", "tokens must be a list of token ids"});
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

    void model(const std::string& name, httplib::Response& out) const {
        name == at_.name ? reply(out, model_entry()) : refuse(out, no_model(name, at_.name));
    }

    [[nodiscard]] json sessions() const {
        json list = json::array();
        for (const auto& each : at_.sessions.list(at_.fingerprint))
            list.push_back({{"id", each.key}, {"requests", each.uses}, {"bytes", each.bytes}, {"in_use", each.in_use}});
        return {{"object", "list"}, {"data", std::move(list)}};
    }

    void forget(const std::string& key, httplib::Response& out) {
        if (!at_.sessions.remove(at_.fingerprint, key))
            return refuse(out, {404, "invalid_request_error", "session_not_found", "there is no session " + key});
        reply(out, {{"id", key}, {"deleted", true}});
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
        gauge("vllm:num_preemptions", "Requests preempted in favor of an older one.", std::to_string(now.preempted));
        to.gauge("kvcache_pages", "Pages that fit the budget.", pages.pages);
        to.gauge("kvcache_pages_free", "Pages never used, or given back.", pages.free);
        to.gauge("kvcache_pages_in_use", "Pages referenced by live sequences.", pages.in_use);
        to.gauge("kvcache_pages_evictable", "Unreferenced pages, cached for the next match.", pages.evictable);
        to.gauge("kvcache_sessions", "Conversations kept.", at_.sessions.size());
        to.gauge("kvcache_session_bytes", "Bytes of idle conversations.", at_.sessions.bytes());
        to.counter("kvcache_drafted_tokens", "Tokens guessed ahead.", now.drafted);
        to.counter("kvcache_accepted_tokens", "Of them, those that were right.", now.accepted);
        const auto tier = at_.cache.tier_stats();
        to.counter("kvcache_tier_loaded_tokens", "Tokens that were read from the tier.", tier.loaded_tokens);
        to.counter("kvcache_tier_stored_pages", "Pages that the tier has written.", tier.stored);
        to.counter("kvcache_tier_failures", "Reads and writes that failed.", tier.store_failures);
        to.counter("kvcache_tier_refused_pages", "Pages in the tier that were damaged, forged or foreign.",
                   tier.refused);
        return text + to.text();
    }

    host& at_;
    completions completions_;
    std::vector<std::string> names_; // that Host may have; empty: any
};

} // namespace server
