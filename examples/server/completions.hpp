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

    void answer(const httplib::Request& in, httplib::Response& out, bool chat) {
        const auto body = read_body(in.body);
        if (!body)
            return refuse(out, problem_of(body.error()));
        auto asked = read_question(*body, chat);
        if (!asked)
            return refuse(out, problem_of(asked.error()));
        if (!asked->model.empty() && asked->model != at_.name)
            return refuse(out, no_model(asked->model, at_.name));
        const std::string header = in.get_header_value("x-session-id");
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
            whole(talk, id, out);
    }

private:
    static void whole(const std::shared_ptr<exchange>& talk, const std::string& id, httplib::Response& out) {
        serve(*talk);
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

        bool send(httplib::DataSink& to, const json& body) const {
            const std::string event = "data: " + body.dump(-1, ' ', false, json::error_handler_t::replace) + "\n\n";
            return to.write(event.data(), event.size());
        }

        // The first token is sent even if it completes no code point, because it marks the start of the answer.
        bool say(httplib::DataSink& to, const piece& said) {
            const bool first = !opened[said.choice];
            if (first && !open(to, said.choice))
                return false;
            const bool empty = said.text.empty() && !talk->asked().log_probabilities && !talk->asked().token_ids;
            return (empty && (!first || talk->asked().chat)) || send(to, write.chunk_of(said));
        }

        bool open(httplib::DataSink& to, std::size_t choice) {
            opened[choice] = true;
            return !talk->asked().chat || send(to, write.opening(choice));
        }

        // Sends one event. False closes the connection.
        bool step(httplib::DataSink& to) {
            if (const auto said = talk->next(std::chrono::milliseconds(100)))
                return say(to, *said);
            if (!talk->over())
                return to.is_writable(); // no token for a while: check the client
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
            constexpr std::string_view end = "data: [DONE]\n\n";
            if (!to.write(end.data(), end.size()))
                return false;
            to.done();
            return true;
        }
    };

    static void stream(const std::shared_ptr<exchange>& talk, const std::string& id, httplib::Response& out) {
        const auto to = std::make_shared<streaming>(talk, id);
        out.set_header("Cache-Control", "no-cache");
        out.set_chunked_content_provider(
            "text/event-stream", [to](std::size_t, httplib::DataSink& sink) { return to->step(sink); },
            [talk](bool) { talk->abandon(); }); // no effect if it is over
    }

    host& at_;
    std::atomic<std::uint64_t> count_ = 0;
};

} // namespace server
