// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/json.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include <httplib.h>

namespace load {

using kvcache::json;
using steady = std::chrono::steady_clock;

/// The measurements of a request. Times are in seconds since the start of the run.
struct measured {
    double due = 0.0; ///< Scheduled time of sending.
    double sent = 0.0;
    double ended = 0.0;
    std::vector<double> tokens = {}; ///< Arrival time of each piece of text.
    std::size_t prompt_tokens = 0;
    std::size_t cached_tokens = 0;
    std::size_t output_tokens = 0;
    std::string text = {};
    std::string failure = {}; ///< A failure label; empty on success.
    std::size_t session = 0;
    std::size_t turn = 0; ///< Index in its conversation.
};

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
    client(const std::string& url, const std::string& key) : link_(url) {
        link_.set_keep_alive(true);
        link_.set_tcp_nodelay(true);
        link_.set_read_timeout(600);
        if (!key.empty())
            link_.set_bearer_token_auth(key.c_str());
    }

    /// Sends a body and reads the stream token by token, with times relative to `zero`.
    [[nodiscard]] measured ask(const std::string& path, const json& body, const std::string& session,
                               steady::time_point zero) {
        const auto now = [&] { return std::chrono::duration<double>(steady::now() - zero).count(); };
        measured made{.sent = now()};
        std::string rest, raw;
        bool finished = false;
        httplib::Request request;
        request.method = "POST";
        request.path = path;
        request.headers = {{"Content-Type", "application/json"}, {"x-session-id", session}};
        request.body = body.dump();
        request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
            rest.append(data, size);
            if (raw.size() < 4096)
                raw.append(data, size);
            for (std::size_t end = rest.find("\n\n"); end != std::string::npos; end = rest.find("\n\n")) {
                const std::string event = rest.substr(0, end);
                rest.erase(0, end + 2);
                if (event == "data: [DONE]")
                    finished = true;
                else if (event.starts_with("data: "))
                    take(event.substr(6), now(), made);
            }
            return true;
        };
        const auto got = link_.send(request);
        made.ended = now();
        if (!got || got->status != 200)
            made.failure = label_of(got ? got->status : 0, raw);
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

    httplib::Client link_;
};

} // namespace load
