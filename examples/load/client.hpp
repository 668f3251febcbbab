// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/json.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "measured.hpp"
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

namespace load {

namespace http = boost::beast::http;
using tcp = boost::asio::ip::tcp;

using kvcache::json;
using steady = std::chrono::steady_clock;

/// Returns the failure label of a status or message.
[[nodiscard]] inline std::string label_of(int status, const std::string& message) {
    for (const int known : {429, 500, 502, 503, 504})
        if (status == known)
            return "HTTP " + std::to_string(known);
    if (message.find("maximum context") != std::string::npos || message.find("context length") != std::string::npos)
        return "Context Window";
    return status > 0 ? "HTTP " + std::to_string(status) : "connection";
}

/// Requests streamed completions from one server, over one persistent connection.
class client {
public:
    /// Requires: `url` is http://HOST, http://HOST:PORT or HOST:PORT.
    client(std::string_view url, std::string key) : key_(std::move(key)) {
        if (constexpr std::string_view scheme = "http://"; url.starts_with(scheme))
            url.remove_prefix(scheme.size());
        url = url.substr(0, url.find('/'));
        const std::size_t colon = url.find_last_of(":]");
        const bool has_port = colon != url.npos && url[colon] == ':';
        host_ = url;
        name_ = has_port ? url.substr(0, colon) : url;
        port_ = has_port ? url.substr(colon + 1) : "80";
        if (name_.starts_with('[') && name_.ends_with(']'))
            name_ = name_.substr(1, name_.size() - 2);
    }

    /// Sends a body and reads the stream token by token, with times relative to `zero`.
    [[nodiscard]] measured ask(const std::string& path, const json& body, const std::string& session,
                               steady::time_point zero) {
        const auto now = [&] { return std::chrono::duration<double>(steady::now() - zero).count(); };
        measured made{.sent = now()};
        std::string rest, raw;
        bool finished = false;
        const auto status = post(path, body.dump(), session, [&](std::string_view part) {
            rest.append(part);
            if (raw.size() < 4096)
                raw.append(part);
            for (std::size_t end = rest.find("\n\n"); end != std::string::npos; end = rest.find("\n\n")) {
                const std::string event = rest.substr(0, end);
                rest.erase(0, end + 2);
                if (event == "data: [DONE]")
                    finished = true;
                else if (event.starts_with("data: "))
                    take(event.substr(6), now(), made);
            }
        });
        made.ended = now();
        if (status != 200)
            made.failure = label_of(static_cast<int>(status), raw);
        else if (made.failure.empty() && !finished)
            made.failure = "stream ended early";
        return made;
    }

private:
    static void take(const std::string& event, double at, measured& into) {
        const auto read = kvcache::parse_json(event, "event");
        if (!read || !read->is_object())
            return;
        if (read->contains("error"))
            into.failure = "stream error";
        if (read->contains("choices") && !(*read)["choices"].empty()) {
            const json& choice = (*read)["choices"][0];
            const json& said = choice.contains("delta") ? choice["delta"] : choice;
            const json& piece = said.contains("content") ? said["content"] : said.value("text", json());
            const std::string text = piece.is_string() ? piece.get<std::string>() : std::string();
            if (!text.empty()) {
                into.tokens.push_back(at);
                into.text += text;
            }
        }
        if (read->contains("usage") && (*read)["usage"].is_object()) {
            const json& usage = (*read)["usage"];
            into.prompt_tokens = usage.value("prompt_tokens", std::size_t{0});
            into.output_tokens = usage.value("completion_tokens", std::size_t{0});
            if (usage.contains("prompt_tokens_details"))
                into.cached_tokens = usage["prompt_tokens_details"].value("cached_tokens", std::size_t{0});
        }
    }

    // Sends a request, and passes on the parts of the response's body as they arrive. Returns the status; 0 if there is
    // no complete response.
    template <class Take>
    [[nodiscard]] unsigned post(const std::string& path, std::string body, const std::string& session, Take&& take) {
        boost::system::error_code fault;
        const bool fresh = !link_.is_open();
        if (fresh && !connect())
            return 0;
        http::request<http::string_body> request(http::verb::post, path, 11, std::move(body));
        request.set(http::field::host, host_);
        request.set(http::field::content_type, "application/json");
        request.set("x-session-id", session);
        if (!key_.empty())
            request.set(http::field::authorization, "Bearer " + key_);
        request.prepare_payload();
        http::write(link_, request, fault);
        http::response_parser<http::buffer_body> parser;
        parser.body_limit(UINT64_MAX);
        if (!fault)
            http::read_header(link_, kept_, parser, fault);
        if (fault && !fresh) { // the server had closed the idle connection
            close();
            return post(path, std::move(request.body()), session, take);
        }
        std::array<char, 16384> part;
        while (!fault && !parser.is_done()) {
            parser.get().body() = {.data = part.data(), .size = part.size(), .more = true};
            http::read_some(link_, kept_, parser, fault);
            if (fault == http::error::need_buffer)
                fault = {};
            take(std::string_view(part.data(), part.size() - parser.get().body().size));
        }
        if (fault || !parser.keep_alive())
            close();
        return fault ? 0 : parser.get().result_int();
    }

    [[nodiscard]] bool connect() {
        boost::system::error_code fault;
        const auto found = tcp::resolver(context_).resolve(name_, port_, fault);
        if (!fault)
            boost::asio::connect(link_, found, fault);
        if (!fault)
            link_.set_option(tcp::no_delay(true), fault);
        return !fault;
    }
    void close() {
        boost::system::error_code ignored;
        link_.close(ignored);
        kept_.clear();
    }

    std::string key_, host_, name_, port_;
    boost::asio::io_context context_;
    tcp::socket link_{context_};
    boost::beast::flat_buffer kept_;
};

} // namespace load
