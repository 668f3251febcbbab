// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/json.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../support/script.hpp"
#include "plan.hpp"

namespace load {

using kvcache::json;

/// The conversations of the users. One thread at a time sends the requests of a user. A context that would grow beyond
/// the limit of the plan loses its oldest turns; the system prompt stays. The number of tokens is estimated from
/// the bytes of earlier prompts and the tokens that the server counted in them.
class conversations {
public:
    /// Recorded turns, if given, replace generated ones; a user who has sent all of them starts again. A `cold`
    /// request begins with a unique word, so that nothing of it is cached.
    conversations(const plan& of, bool chat, bool cold, std::optional<support::script> recorded)
        : plan_(of), chat_(chat), cold_(cold), recorded_(std::move(recorded)), users_(of.sessions()) {}

    /// Returns the body of request `i`, and its index in the user's conversation in `turn`.
    [[nodiscard]] json ask(std::size_t i, std::size_t& turn) {
        const std::size_t session = plan_.session_of(i);
        user& who = users_[session];
        turn = who.turns;
        const std::string system = (cold_ ? "Number " + std::to_string(i) + ". " : std::string()) +
                                   (recorded_ ? recorded_->system : plan_.system_of(session));
        const std::string question =
            recorded_ ? recorded_->turns[who.turns % recorded_->turns.size()] : plan_.question_of(i);
        who.bytes = shorten(who, system.size() + question.size(), plan_.output_of(i));
        json body{{"max_tokens", plan_.output_of(i)},
                  {"temperature", 0.0},
                  {"ignore_eos", true},
                  {"stream", true},
                  {"stream_options", {{"include_usage", true}}}};
        if (chat_) {
            body["messages"] = json::array();
            if (!system.empty())
                body["messages"].push_back({{"role", "system"}, {"content", system}});
            for (const auto& [said, heard] : who.said) {
                body["messages"].push_back({{"role", "user"}, {"content", said}});
                body["messages"].push_back({{"role", "assistant"}, {"content", heard}});
            }
            body["messages"].push_back({{"role", "user"}, {"content", question}});
        } else {
            std::string prompt = system;
            for (const auto& [said, heard] : who.said)
                prompt += " " + said + " " + heard;
            body["prompt"] = prompt + " " + question;
        }
        return body;
    }

    /// Appends the answer to request `i`, whose prompt had `prompt_tokens`; 0 if the server did not count them. A
    /// failed request is left out: the next one continues the last good context.
    void add_answer(std::size_t i, const std::string& answer, std::size_t prompt_tokens) {
        user& who = users_[plan_.session_of(i)];
        if (prompt_tokens > 0 && who.bytes > 0)
            who.tokens_per_byte =
                std::max(who.tokens_per_byte, static_cast<double>(prompt_tokens) / static_cast<double>(who.bytes));
        const std::size_t turn = who.turns++;
        if (recorded_) {
            who.said.emplace_back(recorded_->turns[turn % recorded_->turns.size()], answer);
            if (who.turns % recorded_->turns.size() == 0)
                who.said.clear(), who.turns = 0;
        } else if (plan_.multi_turn)
            who.said.emplace_back(plan_.question_of(i), answer);
        else
            who.turns = 0;
    }

    /// Request `i` was longer than the server's context: the user's next prompts are estimated as longer.
    void add_overflow(std::size_t i) { users_[plan_.session_of(i)].tokens_per_byte *= 1.25; }

private:
    struct user {
        std::vector<std::pair<std::string, std::string>> said = {}; // messages and answers
        std::size_t turns = 0;
        std::size_t bytes = 0;         // of the last prompt
        double tokens_per_byte = 0.25; // the largest ratio of this user's prompts; at first a common one
    };

    // Drops the oldest turns until the prompt and its answer probably fit. Returns the bytes of the prompt, of which
    // `fixed` are not of turns.
    [[nodiscard]] std::size_t shorten(user& who, std::size_t fixed, std::size_t answer) const {
        const auto bytes = [&] {
            std::size_t all = fixed;
            for (const auto& [said, heard] : who.said)
                all += said.size() + heard.size();
            return all;
        };
        // Some room for an estimate that is too low: 200 tokens as inference-perf, less in a small context.
        const double room = static_cast<double>(plan_.context - std::min<std::size_t>(plan_.context / 10, 200)) -
                            static_cast<double>(answer);
        std::size_t now = bytes();
        while (plan_.context > 0 && !who.said.empty() && static_cast<double>(now) * who.tokens_per_byte > room) {
            who.said.erase(who.said.begin());
            now = bytes();
        }
        return now;
    }

    const plan& plan_;
    bool chat_, cold_;
    std::optional<support::script> recorded_;
    std::vector<user> users_;
};

} // namespace load
