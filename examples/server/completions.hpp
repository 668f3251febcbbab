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
#include "read_question.hpp"

namespace server {

/// Answers chats and completions, streamed or not.
template <class Layers>
class completions {
public:
    explicit completions(host<Layers>& at) : at_(at) {}

    void answer(const http_request& in, http_response& out, bool chat) {
        const request_watch watch(in.client, std::chrono::seconds(at_.with.timeout_s));
        const std::size_t bytes = in.body().size();
        kvcache::result<question> asked = given_up();
        if (!at_.prepare.run(bytes, watch, [&](const std::stop_token&) { asked = read_question(in.body(), chat); }))
            asked = given_up();
        in.release_body();
        if (!asked)
            return decline(out, asked.error());
        if (!asked->model.empty() && asked->model != at_.name)
            return refuse(out, no_model(asked->model, at_.name));
        const std::string header = in.header("x-session-id");
        const std::string key = header.empty() ? asked->user : header;
        if (key.size() > 256)
            return refuse(out, {400, "invalid_request_error", "user", "user has more than 256 bytes"});
        if (std::ranges::any_of(key, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
            return refuse(out, {400, "invalid_request_error", "user", "user has a control character"});
        auto tenant = at_.tenant_of(in, asked->cache_salt);
        if (!tenant)
            return refuse(out, problem_of(tenant.error()));
        asked->client = at_.client_of(in);
        const auto what = std::make_shared<question>(std::move(*asked));
        exchanges<Layers> all;
        for (std::size_t i = 0; i < (chat ? 1 : what->prompts.size()); ++i)
            all.push_back(std::make_shared<exchange<Layers>>(at_, what, i, *tenant));
        kvcache::result<void> begun = all.front()->join(key, watch);
        const auto prepare_all = [&](const std::stop_token& stop) {
            for (std::size_t i = 0; begun && i < all.size(); ++i)
                begun = all[i]->prepare(stop);
        };
        if (begun && !at_.prepare.run(bytes, watch, prepare_all))
            begun = given_up();
        for (std::size_t i = 0; begun && i < all.size(); ++i)
            begun = all[i]->start(watch);
        if (!begun) {
            for (const auto& each : all)
                each->leave();
            return decline(out, begun.error());
        }
        answer_json<Layers> write(std::move(all), (chat ? "chatcmpl-" : "cmpl-") + std::to_string(++count_));
        if (what->stream)
            stream(std::move(write), out);
        else
            whole(write, in.client, out);
    }

private:
    // Refuses a request that has no answer yet. One that was given up counts as failed; a wrong one does not.
    void decline(http_response& out, const kvcache::error& why) {
        if (why.code == kvcache::error_code::cancelled)
            at_.times.add({.cancelled = true});
        refuse(out, problem_of(why));
    }
    static kvcache::error given_up() {
        return {kvcache::error_code::cancelled, "request", "the request was cancelled, or its time is over"};
    }

    static void whole(const answer_json<Layers>& write, const connection& client, http_response& out) {
        for (const auto& each : write.all())
            serve(*each, client);
        json choices = json::array();
        for (std::size_t i = 0; i < write.all().size(); ++i) {
            exchange<Layers>& talk = *write.all()[i];
            std::vector<piece> pieces;
            while (auto each = talk.next(std::chrono::milliseconds(0)))
                pieces.push_back(std::move(*each));
            talk.finish();
            if (!talk.failure())
                write.add_choices(i, pieces, choices);
        }
        for (const auto& each : write.all())
            if (const auto failed = each->failure())
                return refuse(out, problem_of(*failed));
        reply(out, write.whole(std::move(choices)));
    }

    // The events of a stream, one prompt after another.
    struct streaming {
        answer_json<Layers> write;
        std::size_t now = 0;      // the prompt
        std::vector<bool> opened; // per choice of the prompt

        explicit streaming(answer_json<Layers> with) : write(std::move(with)) {}

        [[nodiscard]] exchange<Layers>& talk() const { return *write.all()[now]; }

        bool send(chunk_writer& to, const json& body) const {
            const std::string event = "data: " + body.dump(-1, ' ', false, json::error_handler_t::replace) + "\n\n";
            return to.write(event);
        }

        // The first token is sent even if it completes no code point, because it marks the start of the answer.
        bool say(chunk_writer& to, const piece& said) {
            const bool first = !opened[said.choice];
            if (first && !open(to, said.choice))
                return false;
            const question& asked = talk().asked();
            const bool empty = said.text.empty() && !asked.log_probabilities && !asked.token_ids;
            return (empty && (!first || asked.chat)) || send(to, write.chunk_of(now, said));
        }

        bool open(chunk_writer& to, std::size_t choice) {
            opened[choice] = true;
            const question& asked = talk().asked();
            return (!asked.chat && !asked.echo) || send(to, write.opening(now, choice));
        }

        // Sends the events of a prompt. False closes the connection.
        bool send_prompt(chunk_writer& to) {
            opened.assign(talk().asked().choices, false);
            while (!talk().over()) {
                const auto said = talk().next(std::chrono::milliseconds(100));
                if (said ? !say(to, *said) : !to.open()) // no token for a while: check the client
                    return false;
            }
            talk().finish();
            if (const auto failed = talk().failure()) {
                (void)send(to, problem_of(*failed).body());
                return false;
            }
            for (std::size_t i = 0; i < opened.size(); ++i)
                if ((!opened[i] && !open(to, i)) || !send(to, write.ending(now, i)))
                    return false;
            return true;
        }

        bool send_all(chunk_writer& to) {
            for (now = 0; now < write.all().size(); ++now)
                if (!send_prompt(to))
                    return false;
            const question& asked = write.asked();
            if ((asked.include_usage || asked.show_tokens) && !send(to, write.usage_chunk()))
                return false;
            return to.write("data: [DONE]\n\n");
        }
    };

    static void stream(answer_json<Layers> write, http_response& out) {
        const auto to = std::make_shared<streaming>(std::move(write));
        out.headers.set(http::field::cache_control, "no-cache");
        out.type = "text/event-stream";
        out.stream = [to](chunk_writer& sink) {
            const bool sent = to->send_all(sink);
            for (const auto& each : to->write.all())
                each->leave(); // no effect if it is over
            return sent;
        };
    }

    host<Layers>& at_;
    std::atomic<std::uint64_t> count_ = 0;
};

} // namespace server
