// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "answer_json.hpp"
#include "attend.hpp"
#include "exchange.hpp"
#include "problem.hpp"
#include "question.hpp"

namespace server {

/// Answers chats and completions, streamed or not.
class completions {
public:
    explicit completions(host& at) : at_(at) {}

    void answer(const http_request& in, http_response& out, bool chat) {
        const auto body = read_body(in.body());
        if (!body)
            return refuse(out, problem_of(body.error()));
        auto asked = read_question(*body, chat);
        if (!asked)
            return refuse(out, problem_of(asked.error()));
        if (!asked->model.empty() && asked->model != at_.name)
            return refuse(out, no_model(asked->model, at_.name));
        const std::string header = in.header("x-session-id");
        const std::string key = header.empty() ? asked->user : header;
        if (key.size() > 256)
            return refuse(out, {400, "invalid_request_error", "user", "user has more than 256 bytes"});
        if (std::ranges::any_of(key, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
            return refuse(out, {400, "invalid_request_error", "user", "user has a control character"});
        const bool streams = asked->stream;
        const auto talk = std::make_shared<exchange>(at_, std::move(*asked));
        if (auto begun = talk->ask(key); !begun)
            return refuse(out, problem_of(begun.error()));
        const std::string id = (chat ? "chatcmpl-" : "cmpl-") + std::to_string(++count_);
        if (streams)
            stream(talk, id, out);
        else
            whole(talk, id, in.client, out);
    }

private:
    static void whole(const std::shared_ptr<exchange>& talk, const std::string& id, const connection& client,
                      http_response& out) {
        serve(*talk, client);
        std::vector<piece> pieces;
        while (auto each = talk->next(std::chrono::milliseconds(0)))
            pieces.push_back(std::move(*each));
        talk->finish();
        if (const auto failed = talk->failure())
            return refuse(out, problem_of(*failed));
        reply(out, answer_json(*talk, id).whole(pieces));
    }

    // The events of a stream.
    struct streaming {
        std::shared_ptr<exchange> talk;
        answer_json write;
        std::vector<bool> opened; // per choice

        streaming(std::shared_ptr<exchange> with, std::string id)
            : talk(std::move(with)), write(*talk, std::move(id)), opened(talk->asked().choices) {}

        bool send(chunk_writer& to, const json& body) const {
            const std::string event = "data: " + body.dump(-1, ' ', false, json::error_handler_t::replace) + "\n\n";
            return to.write(event);
        }

        // The first token is sent even if it completes no code point, because it marks the start of the answer.
        bool say(chunk_writer& to, const piece& said) {
            const bool first = !opened[said.choice];
            if (first && !open(to, said.choice))
                return false;
            const bool empty = said.text.empty() && !talk->asked().log_probabilities && !talk->asked().token_ids;
            return (empty && (!first || talk->asked().chat)) || send(to, write.chunk_of(said));
        }

        bool open(chunk_writer& to, std::size_t choice) {
            opened[choice] = true;
            return !talk->asked().chat || send(to, write.opening(choice));
        }

        // Sends all events. False closes the connection.
        bool send_all(chunk_writer& to) {
            while (!talk->over()) {
                const auto said = talk->next(std::chrono::milliseconds(100));
                if (said ? !say(to, *said) : !to.open()) // no token for a while: check the client
                    return false;
            }
            talk->finish();
            if (const auto failed = talk->failure()) {
                (void)send(to, problem_of(*failed).body());
                return false;
            }
            for (std::size_t i = 0; i < talk->asked().choices; ++i)
                if ((!opened[i] && !open(to, i)) || !send(to, write.ending(i)))
                    return false;
            if ((talk->asked().include_usage || talk->asked().show_tokens) && !send(to, write.usage_chunk()))
                return false;
            return to.write("data: [DONE]\n\n");
        }
    };

    static void stream(const std::shared_ptr<exchange>& talk, const std::string& id, http_response& out) {
        const auto to = std::make_shared<streaming>(talk, id);
        out.headers.set(http::field::cache_control, "no-cache");
        out.type = "text/event-stream";
        out.stream = [to](chunk_writer& sink) {
            const bool sent = to->send_all(sink);
            to->talk->abandon(); // no effect if it is over
            return sent;
        };
    }

    host& at_;
    std::atomic<std::uint64_t> count_ = 0;
};

} // namespace server
